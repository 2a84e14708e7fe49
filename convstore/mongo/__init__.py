"""Send every MongoDB command of the store and define every document shape; nothing else.

Floor 2. The rooms above call these classes; no other room contains an operator or imports a driver.
"""
