"""Passages that the demo's search tool finds: ten for each of two questions.

Floor 8. A small handbook of our own making, as long and as wordy as what a retriever really returns.
"""

from __future__ import annotations

from typing import TypedDict

__all__ = ["DEEP_LEARNING", "MACHINE_LEARNING", "Passage"]


class Passage(TypedDict):
    """One retrieved item, as a search tool hands it over."""

    title: str
    url: str
    text: str


def _passages(address: str, text: str) -> tuple[Passage, ...]:
    """Cut a text at its blank lines into passages; the first line of each is its title."""
    blocks = [block.split("\n", 1) for block in text.strip().split("\n\n")]
    return tuple(
        Passage(title=title, url=f"{address}/{number}", text=" ".join(body.split()))
        for number, (title, body) in enumerate(blocks, 1)
    )


MACHINE_LEARNING = _passages(
    "https://ml.example",
    """\
Learning from examples
Machine learning is the craft of getting a computer to do something useful without spelling out every step. Instead of
writing rules, you collect examples of the task, choose a family of functions that could solve it, and let a procedure
search that family for the member that fits the examples best. A spam filter is the friendly classic: nobody can write
down what makes a letter unwanted, but everybody can point at a few thousand letters and say which ones are. The
result is called a model, the search is called training, and the examples are called data. What makes the idea work is
that the model is judged on letters it has never seen. A program that merely remembers its examples has learnt nothing
at all.

Supervised learning
In supervised learning every example comes with the answer that a good model should give: a photo with the name of the
bird, a flat with the rent that was paid for it, a sentence with its translation. Training compares the model's answer
with the right one, measures the difference with a loss function, and changes the model a little so that the
difference shrinks. If the answer is a name from a fixed list the task is classification; if it is a number it is
regression. Most of machine learning in daily use is of this kind, and most of its cost is not computing but
labelling: somebody has to look at the bird and write down its name, and somebody else has to check that the first one
was awake.

Unsupervised learning
Often there are plenty of examples and no answers. Unsupervised learning looks for structure in the data alone. A
clustering method puts customers who behave alike into the same group; a method of dimension reduction draws a
thousand measurements of a machine as one point on a page, so that the odd machine stands apart; a density model says
how surprising a new reading is, which is how many alarms for fraud begin. Because there is no right answer to compare
with, judging the result is harder: two people may cut the same data into different groups and both have good reasons.
It is therefore best used to ask questions, not to settle them.

Reinforcement learning
A robot that learns to walk is not told which muscle to move when. It tries something, falls or stays up, and gets a
reward for each step it managed. Reinforcement learning is the study of such situations: an agent acts, the world
changes, a reward arrives, often much later than the action that earned it. The agent must balance exploring what it
does not know against using what it does. The method beat the best human players of several board games and now tunes
the cooling of data centres, but it is hungry for trials and very literal about its reward. An agent that is paid for
points will find the corner of the game where points can be had for ever without playing.

Features and representation
Before a model can learn from a house it has to see the house as numbers: floor space, year, distance to the station,
whether the kitchen was done up. These numbers are the features, and choosing them was for decades the part of the
work where experience counted most. A good feature makes the task almost trivial, a missing one cannot be made up for
by any amount of training. Scale matters too: a method that measures distances will care about square metres and
ignore the number of rooms unless both are brought to a similar range. Modern methods learn part of their features
themselves, which moves the effort from inventing them to collecting enough data to learn them from.

Training test and validation sets
The first rule of the trade is to keep some examples back. The training set is what the model learns from; the
validation set is what you look at while you decide between models; the test set is opened once, at the end, to
estimate how the chosen one will fare in the world. If the test set leaks into training, by a duplicated record or a
normalising step that saw everything, the estimate turns rosy and the disappointment comes in production. With data
that has a calendar, split by time and not at random: a model that has seen next week can predict this week
splendidly. When examples are few, cross-validation lets every one of them serve in both roles, in turns.

Overfitting and regularisation
A model with enough freedom can fit anything, including the noise. It then does well on its training examples and
badly on everything else, which is called overfitting, and it is the most common way for a project to fail quietly.
The sign is a gap: the training error keeps falling while the validation error turns and climbs. The cures have one
idea in common, which is to make the model pay for being complicated. Ridge and lasso add a price for large weights,
trees are pruned, training is stopped early, more data is collected. The opposite ailment, underfitting, is a model
too simple to see the pattern at all; it shows as two errors that are equal and equally poor.

Decision trees and forests
A decision tree asks one simple question after another: is the income above this line, has the account been open for a
year, and so on down to a leaf that holds the answer. Trees are easy to read and need little preparation of the data,
but a single one is nervous, as a few changed examples can give it a different shape. A random forest grows hundreds
of trees on random parts of the data and lets them vote, which calms the nerves. Gradient boosting grows them one
after another, each one repairing what the ones before it got wrong. On tables of numbers and categories, boosted
trees are still the method to beat, and they train on a laptop during a coffee break.

Measuring a model
Accuracy, the share of right answers, is the first number that everybody asks for and often the wrong one. If one
letter in a thousand is dangerous, a filter that waves everything through is right 99.9 percent of the time. Precision
asks how many of the alarms were real, recall how many of the dangers raised an alarm, and the two pull against each
other along a curve. Which point on it is best is not a question of statistics but of costs: a missed tumour and a
needless second scan do not weigh the same. Ask also whether the probabilities can be trusted: of all the days with
seventy percent chance of rain, it should have rained on about seventy percent.

Models in the world
A model is finished when it is switched off, not when it is trained. The world drifts away from the training data:
prices rise, a sensor is replaced, a new product has no history at all. Watch the inputs as well as the answers,
because the answers are often confirmed only months later. Keep the data, the code and the settings of every model
that ever answered a customer, so that the question why can be answered too. And look for harm on purpose. A model
that learnt from past decisions repeats them, with their unfairness, at a speed no clerk could reach. Cheap checks,
done every day, beat a thorough audit that is done once.
""",
)
"""Found for "Tell me about machine learning"."""

DEEP_LEARNING = _passages(
    "https://dl.example",
    """\
Many layers
Deep learning is machine learning with models that are built in layers. Each layer takes the numbers that the one
below gives it, mixes them with weights that were learnt, bends the result a little and hands it up. One layer can do
very little; twenty, or two hundred, can turn the pixels of a photo into the name of the person in it. The word deep
means just that, the number of layers between input and answer. What the layers find is not told to them: in a network
for images the lowest ones come to see edges, the next ones corners and textures, later ones eyes and wheels. The
network learns its own features, which is what sets the method apart from most of what came before it.

The artificial neuron
The smallest part of a network is a humble thing. It multiplies each of its inputs by a weight, adds them up, adds one
more number called the bias, and passes the sum through a function with a bend in it. Without the bend, any stack of
layers would collapse into a single one, as a chain of straight lines is a straight line. The favourite bend today is
the rectifier, which keeps positive sums and turns negative ones into zero. The comparison with nerve cells inspired
the first of these machines in the 1940s and has been stretched ever since; an artificial neuron has about as much in
common with a living one as a paper plane has with a swallow.

Backpropagation
To train a network is to ask, for each of its millions of weights, whether a bit more or a bit less of it would make
the answer better. Trying them one by one would take for ever. Backpropagation gets all the answers in one sweep: the
error at the top is passed down layer by layer with the chain rule of calculus, and each weight receives its share of
the blame. The weights then take a small step in the direction that helps, and the next examples are shown. The idea
was found several times, and became famous in 1986. It is not clever, only thorough, and it fits the hardware that was
made for computer games so well that the two have grown up together.

Gradient descent
Picture a walker in the fog who wants to reach the valley and can feel only the slope under his feet. He takes a step
downhill, feels again, and steps again. Gradient descent does this in a space with as many directions as the model has
weights. The length of the step is the learning rate, the setting most worth getting right: too long and he leaps
across the valley and up the other side, too short and night falls first. In practice the slope is felt on a small
random batch of examples, which is quick and a little wrong, and the wobble even helps to get out of shallow hollows.
Methods such as Adam give every weight a step of its own and forgive a careless choice.

Convolutional networks
An image has a property that a table has not: a cat is a cat wherever it sits. A convolutional network builds on this
by sliding the same small filter over the whole picture, so that whatever it learns in one corner is known in all the
others and the number of weights stays modest. Between the filters the picture is made coarser step by step, until
what remains is a short description of what is there. Such a network read handwritten cheques in the 1990s; in 2012 a
larger one, trained on a million photos with two graphics cards, won a famous contest by a wide margin and began the
present wave. They still do much of the work in cameras, cars and clinics.

Recurrent networks
Speech and text come one piece after another, and what a piece means depends on what was said before. A recurrent
network reads in order and carries a state along, a little summary of everything so far. Plain ones forget quickly,
because the blame that backpropagation sends back through many steps fades to nothing or blows up. The long short-term
memory, with gates that decide what to keep and what to drop, carried translation and dictation for about twenty
years. Reading in order has a price: the tenth word must wait for the ninth, and a machine that could do thousands of
things at a time spends most of it waiting.

Attention and transformers
In 2017 a group of researchers removed the reading in order altogether. In a transformer every word looks at every
other word and decides how much attention each one deserves; the sentence is worked on as a whole, and the hardware is
busy all the time. The order of words is told to the network by a mark on each of them. Attention grows with the
square of the length, which is why long documents are dear and why much ingenuity goes into making them cheaper.
Almost every large language model is a transformer, and so are, by now, many models for images, proteins and sound.
The design turned out to be less about language than about letting any part of the input talk to any other.

Pretraining and fine tuning
Training a large network from nothing takes data and power that few have, but it need be done only once. A network
that has learnt to guess the next word of half the internet, or the hidden half of a picture, has learnt a great deal
on the way that is useful elsewhere. Fine-tuning takes such a pretrained network and continues its training on a few
thousand examples of the task at hand, often changing less than one weight in a hundred. With the largest models not
even that is needed: the task is described in words, with an example or two. The economy of the field has changed
accordingly, from everybody training a little to a few training a lot and many adapting.

Dropout and other tricks
Networks with more weights than examples ought to overfit hopelessly, and the fact that they do not is still being
explained. Part of the answer is a bag of tricks. Dropout switches off a random half of the neurons at each step, so
that none can rely on its neighbour. Normalisation keeps the numbers between layers in a healthy range. Skip
connections give the blame a short way down through hundreds of layers. Augmentation shows each photo mirrored,
cropped and tinted, as if there were many. Early stopping ends the training when the validation error turns. None of
them is deep by itself; together they made training something that usually works.

When not to use it
Deep learning wins where the input is raw and plentiful: pixels, sound, text. It is seldom the best choice for a table
of forty columns and five thousand rows, where boosted trees are quicker, steadier and easier to explain. It needs
graphics processors to train and sometimes to run, and the bill for them arrives every month. Its mistakes are
confident and hard to foresee: a few changed pixels turn a panda into a gibbon. If a decision must be justified to the
person it concerns, a model that can be read line by line may be worth a lost percent of accuracy. Start with the
simplest thing that could work, measure it, and go deep when the measurement says so.
""",
)
"""Found for "What is deep learning?"."""
