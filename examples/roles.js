// A role for each task, and a user for each kind of process: mongosh ADDRESS examples/roles.js
// Put in the name of your database for "app", and CONVSTORE_COLLECTION_PREFIX before the names of collections.
db = db.getSiblingDB("app")
db.runCommand({"createRole": "convstoreServe", "roles": [], "privileges": [
  {"resource": {"db": "app", "collection": "log"}, "actions": ["find", "insert", "update", "remove"]},
  {"resource": {"db": "app", "collection": "heads"}, "actions": ["find", "insert", "update", "remove", "listIndexes"]},
  {"resource": {"db": "app", "collection": "summaries"}, "actions": ["find", "insert", "update", "remove"]},
  {"resource": {"db": "app", "collection": "annotations"}, "actions": ["find", "insert", "update", "remove"]},
  {"resource": {"db": "app", "collection": "search"}, "actions": ["find", "insert", "update", "remove"]},
  {"resource": {"db": "app", "collection": "drafts"}, "actions": ["find", "insert", "update", "remove"]},
  {"resource": {"db": "app", "collection": "convstore_migrations"}, "actions": ["find"]}
]})
db.runCommand({"createRole": "convstoreWatch", "roles": [], "privileges": [
  {"resource": {"db": "app", "collection": ""}, "actions": ["find", "changeStream"]}
]})
db.runCommand({"createRole": "convstoreMigrate", "roles": [], "privileges": [
  {"resource": {"db": "app", "collection": "log"}, "actions": ["createCollection", "createIndex", "find"]},
  {"resource": {"db": "app", "collection": "heads"}, "actions": ["createCollection", "createIndex", "find", "listIndexes"]},
  {"resource": {"db": "app", "collection": "summaries"}, "actions": ["createCollection", "createIndex"]},
  {"resource": {"db": "app", "collection": "annotations"}, "actions": ["createCollection", "createIndex"]},
  {"resource": {"db": "app", "collection": "search"}, "actions": ["createCollection", "createIndex"]},
  {"resource": {"db": "app", "collection": "drafts"}, "actions": ["createCollection", "createIndex"]},
  {"resource": {"db": "app", "collection": "convstore_migrations"}, "actions": ["find", "insert", "update", "remove"]},
  {"resource": {"db": "app", "collection": ""}, "actions": ["listCollections"]}
]})
db.runCommand({"createRole": "convstoreCheck", "roles": [], "privileges": [
  {"resource": {"db": "app", "collection": "log"}, "actions": ["find", "listIndexes", "collStats"]},
  {"resource": {"db": "app", "collection": "heads"}, "actions": ["find", "listIndexes", "collStats"]},
  {"resource": {"db": "app", "collection": "summaries"}, "actions": ["find", "listIndexes", "collStats"]},
  {"resource": {"db": "app", "collection": "annotations"}, "actions": ["find", "listIndexes", "collStats"]},
  {"resource": {"db": "app", "collection": "search"}, "actions": ["find", "listIndexes", "collStats"]},
  {"resource": {"db": "app", "collection": "drafts"}, "actions": ["find", "listIndexes", "collStats"]},
  {"resource": {"db": "app", "collection": "convstore_migrations"}, "actions": ["find"]},
  {"resource": {"db": "app", "collection": ""}, "actions": ["listCollections"]}
]})
db.runCommand({"createRole": "convstoreProbe", "roles": [], "privileges": [
  {"resource": {"db": "app", "collection": "convstore_probe_log"}, "actions": ["createCollection", "dropCollection", "createIndex", "find", "insert", "update", "remove", "listIndexes", "collStats"]},
  {"resource": {"db": "app", "collection": "convstore_probe_heads"}, "actions": ["createCollection", "dropCollection", "createIndex", "find", "insert", "update", "remove", "listIndexes", "collStats"]},
  {"resource": {"db": "app", "collection": "convstore_probe_marker"}, "actions": ["createCollection", "dropCollection", "find", "insert"]},
  {"resource": {"db": "app", "collection": ""}, "actions": ["find", "changeStream", "listCollections"]}
]})
db.createUser({user: "application", pwd: passwordPrompt(), roles: ["convstoreServe", "convstoreWatch"]})
db.createUser({user: "deployment", pwd: passwordPrompt(), roles: ["convstoreMigrate"]})
db.createUser({user: "operator", pwd: passwordPrompt(), roles: ["convstoreServe", "convstoreMigrate", "convstoreCheck"]})
