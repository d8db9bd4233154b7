"""A small bilingual grammar: English and Chinese sentences, built side by side.

Each construction is one function that draws words and builds both sides together. The grammar is made so that an
English sentence has exactly one translation; the rules are in `data/en-zh/README.md`.
"""

from __future__ import annotations

import enum
import random
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

import lexicon as lex
from lexicon import Activity, Adjective, Det, Frame, Kind, Noun, Place, Time, Use, Verb

T = TypeVar("T")


class Draw:
    """Random choices made only from `random.Random.random`, whose sequence Python keeps from version to version."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed).random

    def below(self, bound: int) -> int:
        """Draw an integer from 0 to `bound` - 1."""
        return int(self._random() * bound)

    def chance(self, probability: float) -> bool:
        """Draw True with this probability."""
        return self._random() < probability

    def pick(self, items: Sequence[T]) -> T:
        """Draw one item, each with the same probability."""
        return items[self.below(len(items))]

    def pick_other(self, items: Sequence[T], taken: T) -> T:
        """Draw one item other than `taken`."""
        while (item := self.pick(items)) == taken:
            pass
        return item

    def weighted(self, items: Sequence[tuple[float, T]]) -> T:
        """Draw one item with probability proportional to its weight."""
        point = self._random() * sum(weight for weight, _ in items)
        for weight, item in items:
            point -= weight
            if point < 0:
                return item
        return items[-1][1]

    def shuffle(self, items: list[T]) -> None:
        """Shuffle a list in place (Fisher-Yates)."""
        for last in range(len(items) - 1, 0, -1):
            other = self.below(last + 1)
            items[last], items[other] = items[other], items[last]


class Role(enum.Enum):
    """What a word is to a noun: the verb of which it is the object, or an adjective that describes it."""

    VERB = "verb"
    ADJECTIVE = "adjective"


class Combo(NamedTuple):
    """A verb with its object, or an adjective with its noun."""

    role: Role
    head: str
    noun: str


class Phrase(NamedTuple):
    """An English phrase, its Chinese translation and the combinations of words in it."""

    en: str
    zh: str
    combos: tuple[Combo, ...] = ()


class Agreement(enum.Enum):
    """What an English verb agrees with."""

    I = enum.auto()  # noqa: E741
    SINGULAR = enum.auto()
    PLURAL = enum.auto()


BE = {Agreement.I: "am", Agreement.SINGULAR: "is", Agreement.PLURAL: "are"}
BE_NOT = {Agreement.I: "am not", Agreement.SINGULAR: "isn't", Agreement.PLURAL: "aren't"}
WAS = {Agreement.I: "was", Agreement.SINGULAR: "was", Agreement.PLURAL: "were"}
DO = {Agreement.I: "do", Agreement.SINGULAR: "does", Agreement.PLURAL: "do"}
DO_NOT = {Agreement.I: "don't", Agreement.SINGULAR: "doesn't", Agreement.PLURAL: "don't"}
HAVE = {Agreement.I: "have", Agreement.SINGULAR: "has", Agreement.PLURAL: "have"}


class Subject(NamedTuple):
    """A subject, with its agreement and the possessive that refers back to it."""

    en: str
    zh: str
    agreement: Agreement
    own_en: str
    own_zh: str

    def present(self, verb: Verb) -> str:
        """Inflect a verb in the present tense: "he" + "eat" -> "eats"."""
        return verb.third if self.agreement is Agreement.SINGULAR else verb.base


class Clause(NamedTuple):
    """A clause without capital and stop; Chinese 就 can go between its subject and the rest."""

    en: str
    subject_zh: str
    rest_zh: str
    combos: tuple[Combo, ...] = ()

    @property
    def zh(self) -> str:
        """The whole Chinese clause."""
        return self.subject_zh + self.rest_zh


class Action(NamedTuple):
    """A verb phrase with its object chosen."""

    verb: Verb
    en_object: str
    zh_verb: str
    zh_object: str
    places: tuple[Place, ...]
    uses: Use
    combos: tuple[Combo, ...] = ()

    def en(self, form: str) -> str:
        """Put the object after a form of the verb: "ate" -> "ate an apple"."""
        return join(form, self.en_object)

    @property
    def zh(self) -> str:
        """The plain Chinese verb phrase: 吃苹果."""
        return self.zh_verb + self.zh_object

    @property
    def zh_done(self) -> str:
        """The completed Chinese verb phrase: 吃了苹果."""
        return self.zh_verb + "了" + self.zh_object

    @property
    def zh_ever(self) -> str:
        """The experienced Chinese verb phrase: 吃过苹果."""
        return self.zh_verb + "过" + self.zh_object


class Style(enum.Enum):
    """How the object of a verb is introduced."""

    NEW = enum.auto()  # an apple, two apples, some apples, the apple, my apple
    SINGLE = enum.auto()  # an apple, the apple, my apple
    GENERIC = enum.auto()  # apples
    SCOPE = enum.auto()  # under negation and in questions: any apples, an apple, the apple
    KNOWN = enum.auto()  # the apple, this apple


def join(*words: str) -> str:
    """Join the words that are not empty with blanks."""
    return " ".join(word for word in words if word)


def statement(en: str, zh: str, combos: tuple[Combo, ...] = ()) -> Phrase:
    """Finish a statement: capital letter and full stop."""
    return Phrase(en[0].upper() + en[1:] + ".", zh + "。", combos)


def question(en: str, zh: str, combos: tuple[Combo, ...] = ()) -> Phrase:
    """Finish a question: capital letter and question mark."""
    return Phrase(en[0].upper() + en[1:] + "?", zh + "？", combos)


# Noun phrases


def adjective_for(draw: Draw, noun: Noun, probability: float) -> Adjective | None:
    """Draw an adjective that fits a noun, or none."""
    fitting = lex.ADJECTIVES_OF.get(noun, ())
    return draw.pick(fitting) if fitting and draw.chance(probability) else None


def describes(adjective: Adjective | None, noun: Noun) -> tuple[Combo, ...]:
    """Name the combination of an adjective and a noun."""
    return (Combo(Role.ADJECTIVE, adjective.en, noun.en),) if adjective else ()


def heads(noun: Noun, adjective: Adjective | None) -> tuple[str, str, str]:
    """Put an adjective before a noun: English singular, English plural, Chinese."""
    if adjective is None:
        return noun.en, noun.plural, noun.zh
    return f"{adjective.en} {noun.en}", f"{adjective.en} {noun.plural}", adjective.before + noun.zh


def indefinite(noun: Noun, adjective: Adjective | None = None) -> Phrase:
    """Build "a red car" - 一辆红色的车, "a pair of shoes" - 一双鞋, "a cup of tea" - 一杯茶."""
    singular, _, zh = heads(noun, adjective)
    unit = {Kind.COUNT: "", Kind.PAIR: "pair of ", Kind.MASS: noun.unit + " of "}[noun.kind]
    return Phrase(lex.article(unit + singular), "一" + noun.measure + zh, describes(adjective, noun))


def numbered(noun: Noun, number: Time, adjective: Adjective | None = None) -> Phrase:
    """Build "two red cars" - 两辆红色的车, "two pairs of shoes" - 两双鞋, "two cups of tea" - 两杯茶."""
    singular, plural, zh = heads(noun, adjective)
    counted = {
        Kind.COUNT: plural,
        Kind.PAIR: "pairs of " + plural,
        Kind.MASS: f"{lex.plural_of(noun.unit)} of {singular}" if noun.unit else "",
    }[noun.kind]
    return Phrase(f"{number.en} {counted}", number.zh + noun.measure + zh, describes(adjective, noun))


def some(noun: Noun, adjective: Adjective | None = None) -> Phrase:
    """Build "some red apples" - 一些红色的苹果."""
    _, plural, zh = heads(noun, adjective)
    return Phrase("some " + plural, "一些" + zh, describes(adjective, noun))


def bare(noun: Noun, adjective: Adjective | None = None, determiner: str = "") -> Phrase:
    """Build "red apples" - 红色的苹果; "any red apples" is the same in Chinese."""
    _, plural, zh = heads(noun, adjective)
    return Phrase(join(determiner, plural), zh, describes(adjective, noun))


def definite(noun: Noun, adjective: Adjective | None = None) -> Phrase:
    """Build "the red car" after a verb - 那辆红色的车, or 门 for "the door", of which there is only one around."""
    singular, _, zh = heads(noun, adjective)
    zh = zh if noun in lex.SITUATIONAL else "那" + noun.measure + zh
    return Phrase("the " + singular, zh, describes(adjective, noun))


def topic(noun: Noun, adjective: Adjective | None = None) -> Phrase:
    """Build "the red car" before a verb - 红色的车."""
    singular, _, zh = heads(noun, adjective)
    return Phrase("the " + singular, zh, describes(adjective, noun))


def demonstrative(noun: Noun, this: bool, adjective: Adjective | None = None) -> Phrase:
    """Build "this cat" - 这只猫, "that pair of shoes" - 那双鞋, "this cup of tea" - 这杯茶."""
    singular, _, zh = heads(noun, adjective)
    unit = {Kind.COUNT: "", Kind.PAIR: "pair of ", Kind.MASS: noun.unit + " of "}[noun.kind]
    en, determiner = ("this", "这") if this else ("that", "那")
    return Phrase(f"{en} {unit}{singular}", determiner + noun.measure + zh, describes(adjective, noun))


def demonstrative_plural(noun: Noun, these: bool, number: Time | None, adjective: Adjective | None = None) -> Phrase:
    """Build "these cats" - 这些猫, "those two cats" - 那两只猫."""
    _, plural, zh = heads(noun, adjective)
    en, determiner = ("these", "这") if these else ("those", "那")
    if number is None:
        return Phrase(f"{en} {plural}", determiner + "些" + zh, describes(adjective, noun))
    phrase = numbered(noun, number, adjective)
    return Phrase(f"{en} {phrase.en}", determiner + phrase.zh, phrase.combos)


def possessed(noun: Noun, owner_en: str, owner_zh: str, adjective: Adjective | None = None) -> Phrase:
    """Build "my red car" - 我的红色的车."""
    singular, _, zh = heads(noun, adjective)
    return Phrase(f"{owner_en} {singular}", f"{owner_zh}的{zh}", describes(adjective, noun))


# People


def pronoun_subject(pronoun: lex.Pronoun) -> Subject:
    """Make a subject of a pronoun: "I" - 我."""
    if pronoun.subject == "I":
        agreement = Agreement.I
    else:
        agreement = Agreement.SINGULAR if pronoun.subject in ("he", "she") else Agreement.PLURAL
    return Subject(pronoun.subject, pronoun.zh, agreement, pronoun.possessive, pronoun.zh)


PRONOUN_SUBJECTS = tuple(pronoun_subject(pronoun) for pronoun in lex.PRONOUNS)
I, YOU, HE, SHE, WE, THEY = PRONOUN_SUBJECTS  # noqa: E741
SINGULAR_OWNERS = (I, YOU, HE, SHE)


def name_subject(draw: Draw) -> Subject:
    """Draw a name: "Anna" - 安娜."""
    name = draw.pick(lex.NAMES)
    return Subject(name.en, name.zh, Agreement.SINGULAR, name.own_en, name.own_zh)


def family_subject(draw: Draw) -> Subject:
    """Draw a member of a family: "my mother" - 我妈妈, "Anna's mother" - 安娜的妈妈."""
    member = draw.pick(lex.FAMILY)
    if draw.chance(0.2):
        name = draw.pick(lex.NAMES)
        owner_en, owner_zh = name.en + "'s", name.zh + "的"
    else:
        owner = draw.pick(SINGULAR_OWNERS)
        owner_en, owner_zh = owner.own_en, owner.own_zh
    return Subject(f"{owner_en} {member.en}", owner_zh + member.zh, Agreement.SINGULAR, member.own_en, member.own_zh)


def person_subject(draw: Draw) -> Subject:
    """Draw a person: "the teacher" - 老师, "this boy" - 这个男孩, "the students" - 学生们, "my friend" - 我的朋友."""
    noun = draw.pick(lex.PEOPLE)
    own_en = lex.OWN_PRONOUN.get(noun.en) or draw.pick(("his", "her"))
    own_zh = "他" if own_en == "his" else "她"
    kind = draw.below(6)
    if kind == 0:
        return Subject("the " + noun.plural, noun.zh + "们", Agreement.PLURAL, "their", "他们")
    if kind <= 2 and noun in lex.PROFESSIONS:
        phrase = topic(noun)
    elif kind <= 4:
        phrase = demonstrative(noun, this=draw.chance(0.5))
    else:
        owner = draw.pick(SINGULAR_OWNERS)
        phrase = possessed(draw.pick(lex.ACQUAINTANCES), owner.own_en, owner.own_zh)
    return Subject(phrase.en, phrase.zh, Agreement.SINGULAR, own_en, own_zh)


def couple_subject(draw: Draw) -> Subject:
    """Draw two names: "Tom and Anna" - 汤姆和安娜."""
    first = draw.pick(lex.NAMES)
    second = draw.pick_other(lex.NAMES, first)
    return Subject(f"{first.en} and {second.en}", f"{first.zh}和{second.zh}", Agreement.PLURAL, "their", "他们")


def someone(draw: Draw) -> Subject:
    """Draw a subject of any kind."""
    kind = draw.weighted(((4, 0), (2, 1), (1.6, 2), (2.6, 3), (0.5, 4)))
    if kind == 0:
        return draw.pick(PRONOUN_SUBJECTS)
    return (name_subject, family_subject, person_subject, couple_subject)[kind - 1](draw)


def third_person(draw: Draw) -> Subject:
    """Draw a subject that one can ask about: not "I" or "we"."""
    while (subject := someone(draw)) in (I, WE):
        pass
    return subject


def regular(draw: Draw) -> Subject:
    """Draw a subject for what is usual: not "the teacher", which the Chinese 老师 would not tell from "teachers"."""
    while (subject := someone(draw)).en.startswith("the ") and subject.agreement is Agreement.SINGULAR:
        pass
    return subject


def simple_subject(draw: Draw) -> Subject:
    """Draw one person or a pronoun, such as a compound sentence can take up again."""
    kind = draw.below(6)
    if kind <= 1:
        return draw.pick(PRONOUN_SUBJECTS)
    return (name_subject, name_subject, family_subject, person_subject)[kind - 2](draw)


def again(subject: Subject) -> Subject:
    """Take a subject up again with a pronoun: "Anna" -> "she"."""
    if subject in PRONOUN_SUBJECTS:
        return subject
    return {"their": THEY, "his": HE, "her": SHE}[subject.own_en]


def named_owner(draw: Draw) -> Subject:
    """Draw an owner: a pronoun or a name."""
    return draw.pick(PRONOUN_SUBJECTS) if draw.chance(0.6) else name_subject(draw)


def whose(owner: Subject) -> str:
    """Build the English possessive of an owner: "my", "Anna's"."""
    return owner.own_en if owner in PRONOUN_SUBJECTS else owner.en + "'s"


def other_person(draw: Draw, subject: Subject) -> Phrase:
    """Draw a person as object, other than the subject: "him" - 他, "Anna" - 安娜, "his mother" - 他妈妈."""
    kind = draw.below(4)
    if kind == 0:
        taken = {"I": ("me", "us"), "we": ("me", "us"), "you": ("you",)}.get(subject.en, ("him", "her", "them"))
        pronoun = draw.pick([pronoun for pronoun in lex.PRONOUNS if pronoun.object not in taken])
        return Phrase(pronoun.object, pronoun.zh)
    if kind == 1 and subject.agreement is not Agreement.PLURAL and not subject.zh.endswith(FAMILY_ENDINGS):
        member = draw.pick(lex.FAMILY)
        return Phrase(f"{subject.own_en} {member.en}", subject.own_zh + member.zh)
    if kind == 2 and subject.en.split()[-1] not in ("friend", "neighbor", "teacher"):
        return possessed(draw.pick(lex.ACQUAINTANCES[:3]), subject.own_en, subject.own_zh)
    name = draw.pick([name for name in lex.NAMES if name.en not in subject.en])
    return Phrase(name.en, name.zh)


FAMILY_ENDINGS = tuple(member.zh for member in lex.FAMILY)


# Verb phrases


def frames_for(use: Use) -> list[tuple[float, Frame]]:
    """Select the frames that fit a use, weighted by their number of objects within limits."""
    return [(3 + min(len(frame.objects), 12), frame) for frame in lex.FRAMES if use in frame.uses]


FRAMES = {use: frames_for(use) for use in Use}
ACTIVITIES = {use: [activity for activity in lex.ACTIVITIES if use in activity.uses] for use in Use}


def few(draw: Draw) -> Time:
    """Draw a number from two to ten, small ones more often."""
    return draw.pick(lex.NUMBERS[:4] if draw.chance(0.5) else lex.NUMBERS)


def known_object(draw: Draw, noun: Noun, counted: bool, adjective: Adjective | None) -> Phrase:
    """Draw "the", "this" or, where it can be counted, "these", "those" and "these two" before an object."""
    kind = draw.below(10)
    if noun.kind is Kind.MASS or kind in (0, 1, 2):
        return demonstrative(noun, this=True, adjective=adjective)
    if counted and noun.kind is Kind.COUNT and noun not in lex.SITUATIONAL and kind in (3, 4, 5):
        number = draw.pick(lex.NUMBERS[:4]) if kind == 5 else None
        return demonstrative_plural(noun, draw.chance(0.5), number, adjective)
    return definite(noun, adjective)


def in_scope(noun: Noun, counted: bool, adjective: Adjective | None) -> Phrase:
    """Build an indefinite object under negation or in a question: "any apples" - 苹果, "a hat" - 帽子."""
    if counted or noun.kind is not Kind.COUNT:
        return bare(noun, adjective, "any")
    singular, _, zh = heads(noun, adjective)
    return Phrase(lex.article(singular), zh, describes(adjective, noun))


def object_phrase(draw: Draw, noun: Noun, dets: Det, style: Style, owner: Subject) -> Phrase:
    """Draw a determiner that the style and the verb allow, and perhaps an adjective."""
    counted = Det.NUMBER in dets
    adjective = adjective_for(draw, noun, 0.25)
    if style is Style.GENERIC:
        if Det.A in dets:
            return bare(noun, adjective)
        return possessed(noun, owner.own_en, owner.own_zh) if Det.OWN in dets else definite(noun)
    choices: list[tuple[float, Callable[[], Phrase]]] = []
    if Det.A in dets and style in (Style.NEW, Style.SINGLE):
        choices.append((3.0, lambda: indefinite(noun, adjective)))
    if Det.A in dets and style is Style.SCOPE:
        choices.append((2.0, lambda: in_scope(noun, counted, adjective)))
    if counted and style is Style.NEW:
        choices.append((1.5, lambda: numbered(noun, few(draw), adjective)))
        choices.append((0.5, lambda: some(noun, adjective)))
    if Det.THE in dets or (style is Style.KNOWN and Det.OWN not in dets):
        choices.append((2.0, lambda: known_object(draw, noun, counted, adjective)))
    if Det.OWN in dets and (style is not Style.KNOWN or Det.THE not in dets):
        choices.append((3.0, lambda: possessed(noun, owner.own_en, owner.own_zh, adjective)))
    return draw.weighted(choices)()


def frame_action(draw: Draw, frame: Frame, style: Style, owner: Subject) -> Action:
    """Choose an object for a frame: "eat" - 吃 and "an apple" - 一个苹果."""
    noun = draw.pick(frame.objects)
    while frame.verb is lex.WEAR and noun in lex.WOMENS_CLOTHES and owner.own_zh == "他":
        noun = draw.pick(frame.objects)
    phrase = object_phrase(draw, noun, frame.dets, style, owner)
    combos = (Combo(Role.VERB, frame.verb.base, noun.en), *phrase.combos)
    return Action(frame.verb, phrase.en, frame.zh, phrase.zh, frame.places, frame.uses, combos)


NOUN_OF = {form: noun for noun in lex.NOUNS.values() for form in (noun.en, noun.plural)}


def fixed_object(verb: str, thing: str) -> tuple[Combo, ...]:
    """Name the combination in a fixed phrase: "eat bananas" has the object "banana", "play tennis" has no noun."""
    return (Combo(Role.VERB, verb, NOUN_OF[thing].en),) if thing in NOUN_OF else ()


def activity_action(activity: Activity) -> Action:
    """Make a verb phrase of an activity: "play the piano" - 弹钢琴."""
    verb, thing, zh, zh_object, places, uses = activity
    return Action(verb, thing, zh, zh_object, places, uses, fixed_object(verb.base, thing))


def frame_for(draw: Draw, use: Use, owner: Subject) -> Frame:
    """Draw a frame that fits a use; several people do not wear one hat."""
    while (frame := draw.weighted(FRAMES[use])).verb is lex.WEAR and owner.agreement is Agreement.PLURAL:
        pass
    return frame


def action(draw: Draw, use: Use, style: Style, owner: Subject) -> Action:
    """Draw what a person does."""
    if ACTIVITIES[use] and draw.chance(0.28):
        return activity_action(draw.pick(ACTIVITIES[use]))
    return frame_action(draw, frame_for(draw, use, owner), style, owner)


def effort(draw: Draw, style: Style, owner: Subject) -> Action:
    """Draw something that takes time and strength, as one does not when one is tired or busy."""
    if draw.chance(0.3):
        return activity_action(draw.pick(lex.HOBBIES))
    return frame_action(draw, draw.weighted(EFFORTS), style, owner)


EFFORTS = [(weight, frame) for weight, frame in FRAMES[Use.NOW] if frame.verb in lex.EFFORTS]


def past_time(draw: Draw, act: Action) -> Time:
    """Draw a time when something happened: years ago only for what one still speaks of."""
    if Use.YEARS in act.uses:
        return draw.pick(lex.PAST_YEARS)
    return draw.pick(lex.RECENT_TIMES + lex.PAST_YEARS if Use.LONG_AGO in act.uses else lex.RECENT_TIMES)


def future_time(draw: Draw, act: Action) -> Time:
    """Draw a time when something will happen: next year only for what one plans so early."""
    if Use.YEARS in act.uses:
        return draw.pick(lex.FUTURE_YEARS)
    return draw.pick(lex.SOON + lex.FUTURE_YEARS if Use.LONG_AGO in act.uses else lex.SOON)


def place_of(draw: Draw, act: Action, probability: float = 0.3) -> Place:
    """Draw a place that fits an action, or an empty one: "in the park" - 在公园里."""
    if act.places and draw.chance(probability):
        place = draw.pick(act.places)
        return Place(place.en, "在" + place.zh)
    return Place("", "")


def progressive(place: Place) -> str:
    """Build the mark of what goes on now, which swallows the 在 of a place: 正在 or 正在家."""
    return "正" + place.zh if place.zh else "正在"


# Clauses


def progressive_clause(draw: Draw, who: Subject) -> Clause:
    """Build "Tom is reading a book in the park" - 汤姆正在公园里看一本书."""
    act = action(draw, Use.NOW, Style.SINGLE, who)
    place = place_of(draw, act)
    en = join(who.en, BE[who.agreement], act.en(act.verb.gerund), place.en)
    return Clause(en, who.zh, progressive(place) + act.zh, act.combos)


def future_clause(draw: Draw, who: Subject, timed: bool) -> Clause:
    """Build "we will read this book at home tomorrow" - 我们明天会在家看这本书."""
    act = action(draw, Use.FUTURE, Style.NEW, who)
    place = place_of(draw, act)
    when = future_time(draw, act) if timed else NO_TIME
    en = join(who.en, "will", act.en(act.verb.base), place.en, when.en)
    return Clause(en, who.zh, when.zh + "会" + place.zh + act.zh, act.combos)


NO_TIME = Time("", "")

# English modal verbs, and verbs of wish before "to", with their Chinese counterparts.
MODALS = (("can", "能"), ("can't", "不能"), ("should", "应该"), ("shouldn't", "不应该"), ("must", "必须"))
WISHES = ((lex.WANT, "想"), (lex.PLAN, "打算"), (lex.NEED, "需要"))


def wish_clause(draw: Draw, who: Subject, timed: bool) -> Clause:
    """Build "he wants to buy a new car next year" - 他明年想买一辆新车."""
    verb, zh = draw.pick(WISHES)
    act = action(draw, Use.PLAN, Style.NEW, who)
    place = place_of(draw, act)
    when = future_time(draw, act) if timed else NO_TIME
    en = join(who.en, who.present(verb), "to", act.en(act.verb.base), place.en, when.en)
    return Clause(en, who.zh, when.zh + zh + place.zh + act.zh, act.combos)


# Constructions: statements about actions


def past(draw: Draw) -> Phrase:
    """我昨天在家看了一本书。 - I read a book at home yesterday."""
    who = someone(draw)
    act = action(draw, Use.PAST, Style.NEW, who)
    place, when = place_of(draw, act), past_time(draw, act)
    en = join(who.en, act.en(act.verb.past), place.en, when.en)
    return statement(en, who.zh + when.zh + place.zh + act.zh_done, act.combos)


def past_without_time(draw: Draw) -> Phrase:
    """她买了一条红色的裙子。 - She bought a red skirt."""
    who = someone(draw)
    act = action(draw, Use.PAST, Style.NEW, who)
    if act.verb.past == act.verb.base:
        return past(draw)
    return statement(join(who.en, act.en(act.verb.past)), who.zh + act.zh_done, act.combos)


def past_time_first(draw: Draw) -> Phrase:
    """去年，汤姆卖了他的车。 - Last year, Tom sold his car."""
    who = someone(draw)
    act = action(draw, Use.PAST, Style.NEW, who)
    place, when = place_of(draw, act), past_time(draw, act)
    en = join(when.en + ",", who.en, act.en(act.verb.past), place.en)
    return statement(en, f"{when.zh}，{who.zh}{place.zh}{act.zh_done}", act.combos)


def past_negative(draw: Draw) -> Phrase:
    """她昨天没买苹果。 - She didn't buy any apples yesterday."""
    who = someone(draw)
    act = action(draw, Use.PAST, Style.SCOPE, who)
    place, when = place_of(draw, act), past_time(draw, act)
    en = join(who.en, "didn't", act.en(act.verb.base), place.en, when.en)
    return statement(en, f"{who.zh}{when.zh}没{place.zh}{act.zh}", act.combos)


def past_question(draw: Draw) -> Phrase:
    """你昨天看了这本书吗？ - Did you read this book yesterday?"""
    who = third_person(draw)
    act = action(draw, Use.PAST, Style.SCOPE, who)
    place, when = place_of(draw, act, 0.2), past_time(draw, act)
    en = join("did", who.en, act.en(act.verb.base), place.en, when.en)
    return question(en, f"{who.zh}{when.zh}{place.zh}{act.zh_done}吗", act.combos)


def going(draw: Draw) -> Phrase:
    """汤姆正在公园里看一本书。 - Tom is reading a book in the park."""
    clause = progressive_clause(draw, someone(draw))
    return statement(clause.en, clause.zh, clause.combos)


def going_negative(draw: Draw) -> Phrase:
    """她没在洗那辆车。 - She isn't washing the car."""
    who = someone(draw)
    act = action(draw, Use.NOW, Style.KNOWN, who)
    en = join(who.en, BE_NOT[who.agreement], act.en(act.verb.gerund))
    return statement(en, who.zh + "没在" + act.zh, act.combos)


def going_question(draw: Draw) -> Phrase:
    """你正在下棋吗？ - Are you playing chess?"""
    who = third_person(draw)
    act = action(draw, Use.NOW, Style.SINGLE, who)
    place = place_of(draw, act, 0.2)
    en = join(BE[who.agreement], who.en, act.en(act.verb.gerund), place.en)
    return question(en, who.zh + progressive(place) + act.zh + "吗", act.combos)


def future(draw: Draw) -> Phrase:
    """我们明天会在家看这本书。 - We will read this book at home tomorrow."""
    clause = future_clause(draw, someone(draw), timed=True)
    return statement(clause.en, clause.zh, clause.combos)


def future_negative(draw: Draw) -> Phrase:
    """他们明天不会买书。 - They won't buy any books tomorrow."""
    who = someone(draw)
    act = action(draw, Use.FUTURE, Style.SCOPE, who)
    place, when = place_of(draw, act), future_time(draw, act)
    en = join(who.en, "won't", act.en(act.verb.base), place.en, when.en)
    return statement(en, f"{who.zh}{when.zh}不会{place.zh}{act.zh}", act.combos)


def future_question(draw: Draw) -> Phrase:
    """安娜明年会卖她的车吗？ - Will Anna sell her car next year?"""
    who = third_person(draw)
    act = action(draw, Use.FUTURE, Style.SCOPE, who)
    when = future_time(draw, act)
    en = join("will", who.en, act.en(act.verb.base), when.en)
    return question(en, f"{who.zh}{when.zh}会{act.zh}吗", act.combos)


def habit(draw: Draw) -> Phrase:
    """她每天在家看书。 - She reads books at home every day. 他从来不吃肉。 - He never eats meat."""
    who = regular(draw)
    act = action(draw, Use.HABIT, Style.GENERIC, who)
    place = place_of(draw, act)
    verb = who.present(act.verb)
    if draw.chance(0.5):
        when = draw.pick(lex.HABIT_TIMES)
        en = join(who.en, act.en(verb), place.en, when.en)
    else:
        when = draw.pick(lex.ADVERBS)
        en = join(who.en, when.en, act.en(verb), place.en)
    return statement(en, who.zh + when.zh + place.zh + act.zh, act.combos)


def habit_negative(draw: Draw) -> Phrase:
    """他不吃肉。 - He doesn't eat meat."""
    who = regular(draw)
    if draw.chance(0.3):
        act = activity_action(draw.pick(lex.HOBBIES))
    else:
        act = frame_action(draw, frame_for(draw, Use.HABIT, who), Style.GENERIC, who)
    en = join(who.en, DO_NOT[who.agreement], act.en(act.verb.base))
    return statement(en, f"{who.zh}不{act.zh}", act.combos)


def habit_question(draw: Draw) -> Phrase:
    """你经常在家看书吗？ - Do you often read books at home?"""
    who = third_person(draw)
    act = action(draw, Use.HABIT, Style.GENERIC, who)
    place = place_of(draw, act)
    en = join(DO[who.agreement], who.en, "often", act.en(act.verb.base), place.en)
    return question(en, who.zh + "经常" + place.zh + act.zh + "吗", act.combos)


def ability(draw: Draw) -> Phrase:
    """她会弹钢琴。 - She can play the piano."""
    act = activity_action(draw.pick(lex.SKILLS))
    if draw.chance(0.3):
        who = third_person(draw)
        return question(join("can", who.en, act.en(act.verb.base)), f"{who.zh}会{act.zh}吗")
    who = someone(draw)
    modal_en, modal_zh = draw.pick((("can", "会"), ("can't", "不会")))
    return statement(join(who.en, modal_en, act.en(act.verb.base)), who.zh + modal_zh + act.zh)


def possible(draw: Draw, modal_en: str, owner: Subject) -> Action:
    """Draw what one can, should or must do; "can" leaves out skills, for which it is 会."""
    style = Style.SCOPE if modal_en in ("can't", "shouldn't") else Style.NEW
    act = action(draw, Use.PLAN, style, owner)
    while modal_en in ("can", "can't") and act.verb in SKILL_VERBS:
        act = action(draw, Use.PLAN, style, owner)
    return act


SKILL_VERBS = frozenset(skill.verb for skill in lex.SKILLS)


def modal(draw: Draw) -> Phrase:
    """你应该洗这件衬衫。 - You should wash this shirt. 我明年不能买车。 - I can't buy a car next year."""
    who = someone(draw)
    modal_en, modal_zh = draw.pick(MODALS)
    act = possible(draw, modal_en, who)
    place = place_of(draw, act)
    when = future_time(draw, act) if draw.chance(0.3) else NO_TIME
    en = join(who.en, modal_en, act.en(act.verb.base), place.en, when.en)
    return statement(en, who.zh + when.zh + modal_zh + place.zh + act.zh, act.combos)


def modal_question(draw: Draw) -> Phrase:
    """我应该买这本书吗？ - Should I buy this book?"""
    who = someone(draw)
    modal_en, modal_zh = draw.pick((("can", "能"), ("should", "应该"), ("must", "必须")))
    while (act := action(draw, Use.PLAN, Style.SCOPE, who)).verb in SKILL_VERBS:
        pass
    return question(join(modal_en, who.en, act.en(act.verb.base)), f"{who.zh}{modal_zh}{act.zh}吗", act.combos)


def permission(draw: Draw) -> Phrase:
    """我可以打开窗户吗？ - May I open the window?"""
    who = draw.pick((I, WE))
    act = action(draw, Use.ORDER, Style.NEW, who)
    place = place_of(draw, act)
    if draw.chance(0.6):
        return question(
            join("may", who.en, act.en(act.verb.base), place.en), f"{who.zh}可以{place.zh}{act.zh}吗", act.combos
        )
    return statement(join("you may", act.en(act.verb.base), place.en), f"你可以{place.zh}{act.zh}", act.combos)


def wish(draw: Draw) -> Phrase:
    """他想买一辆新车。 - He wants to buy a new car."""
    clause = wish_clause(draw, someone(draw), draw.chance(0.4))
    return statement(clause.en, clause.zh, clause.combos)


def wish_negative(draw: Draw) -> Phrase:
    """她不想吃肉。 - She doesn't want to eat any meat."""
    who = someone(draw)
    verb, zh = draw.pick(WISHES)
    act = action(draw, Use.PLAN, Style.SCOPE, who)
    en = join(who.en, DO_NOT[who.agreement], verb.base, "to", act.en(act.verb.base))
    return statement(en, f"{who.zh}不{zh}{act.zh}", act.combos)


def wish_question(draw: Draw) -> Phrase:
    """你想下棋吗？ - Do you want to play chess?"""
    who = third_person(draw)
    verb, zh = draw.pick(WISHES)
    act = action(draw, Use.PLAN, Style.SCOPE, who)
    en = join(DO[who.agreement], who.en, verb.base, "to", act.en(act.verb.base))
    return question(en, who.zh + zh + act.zh + "吗", act.combos)


def experience(draw: Draw) -> Phrase:
    """我看过这本书。 - I have read this book. 她从来没骑过马。 - She has never ridden a horse."""
    who = someone(draw)
    have = HAVE[who.agreement]
    if draw.chance(0.4):
        frame = draw.pick(REPEATABLE)
        act = frame_action(draw, frame, Style.KNOWN, who)
        return statement(join(who.en, have, act.en(act.verb.participle)), who.zh + act.zh_ever, act.combos)
    if draw.chance(0.3):
        act = activity_action(draw.pick(ACTIVITIES[Use.EVER]))
    else:
        frame = draw.weighted(FRAMES[Use.EVER])
        noun = draw.pick(frame.objects)
        thing = in_scope(noun, False, adjective_for(draw, noun, 0.25))
        combos = (Combo(Role.VERB, frame.verb.base, noun.en), *thing.combos)
        act = Action(frame.verb, thing.en.removeprefix("any "), frame.zh, thing.zh, frame.places, frame.uses, combos)
    form = act.en(act.verb.participle)
    if draw.chance(0.5):
        return statement(join(who.en, have, "never", form), f"{who.zh}从来没{act.zh_ever}", act.combos)
    return question(join(have, who.en, "ever", form), f"{who.zh}{act.zh_ever}吗", act.combos)


REPEATABLE = tuple(
    frame
    for frame in lex.FRAMES
    if Use.EVER in frame.uses
    and frame.verb
    in (lex.READ, lex.WATCH, lex.LISTEN_TO, lex.SING, lex.RIDE, lex.DRIVE, lex.CLIMB, lex.VISIT, lex.TRAIN)
)


def been_to(draw: Draw) -> Phrase:
    """你去过北京吗？ - Have you ever been to Beijing?"""
    kind = draw.below(4)
    who = third_person(draw) if kind == 2 else someone(draw)
    have, city = HAVE[who.agreement], draw.pick(lex.CITY_NAMES)
    if kind == 0:
        return statement(f"{who.en} {have} been to {city.en}", f"{who.zh}去过{city.zh}")
    if kind == 1:
        return statement(f"{who.en} {have} never been to {city.en}", f"{who.zh}从来没去过{city.zh}")
    if kind == 2:
        return question(f"{have} {who.en} ever been to {city.en}", f"{who.zh}去过{city.zh}吗")
    times = few(draw)
    often = "twice" if times.en == "two" else f"{times.en} times"
    return statement(f"{who.en} {have} been to {city.en} {often}", f"{who.zh}去过{times.zh}次{city.zh}")


def imperative(draw: Draw) -> Phrase:
    """请打开窗户。 - Please open the window. 我们下棋吧。 - Let's play chess."""
    kind = draw.below(4)
    owner = WE if kind == 3 else YOU
    act = action(draw, Use.ORDER, Style.SCOPE if kind == 2 else Style.NEW, owner)
    place = place_of(draw, act, 0.25)
    en, zh = join(act.en(act.verb.base), place.en), place.zh + act.zh
    if kind == 2:
        return statement("don't " + en, "别" + zh, act.combos)
    if kind == 3:
        return statement("let's " + en, f"我们{zh}吧", act.combos)
    return statement("please " + en, "请" + zh, act.combos)


# Constructions: questions with a question word


def who_question(draw: Draw) -> Phrase:
    """谁买了这本书？ - Who bought this book?"""
    kind = draw.below(3)
    if kind == 0:
        act = action(draw, Use.PAST, Style.KNOWN, HE)
        return question(join("who", act.en(act.verb.past)), "谁" + act.zh_done, act.combos)
    if kind == 1:
        act = action(draw, Use.NOW, Style.SINGLE, HE)
        place = place_of(draw, act)
        return question(
            join("who is", act.en(act.verb.gerund), place.en), "谁" + progressive(place) + act.zh, act.combos
        )
    act = action(draw, Use.FUTURE, Style.KNOWN, HE)
    when = future_time(draw, act)
    return question(join("who will", act.en(act.verb.base), when.en), f"谁{when.zh}会{act.zh}", act.combos)


def what_question(draw: Draw) -> Phrase:
    """你昨天买了什么？ - What did you buy yesterday? 她正在看什么？ - What is she reading?"""
    who = third_person(draw)
    verb, zh = draw.pick(WHAT_VERBS)
    kind = draw.below(3)
    if kind == 0:
        when = draw.pick(lex.RECENT_TIMES)
        return question(join("what did", who.en, verb.base, when.en), f"{who.zh}{when.zh}{zh}了什么")
    if kind == 1:
        return question(join("what", BE[who.agreement], who.en, verb.gerund), f"{who.zh}正在{zh}什么")
    when = draw.pick(lex.SOON)
    return question(join("what will", who.en, verb.base, when.en), f"{who.zh}{when.zh}会{zh}什么")


WHAT_VERBS = (
    (lex.BUY, "买"), (lex.EAT, "吃"), (lex.DRINK, "喝"), (lex.READ, "看"), (lex.WRITE, "写"),
    (lex.DRAW, "画"), (lex.STUDY, "学习"), (lex.REPAIR, "修"), (lex.WASH, "洗"), (lex.CUT, "切"),
    (lex.TRANSLATE, "翻译"),
)  # fmt: skip


def where_question(draw: Draw) -> Phrase:
    """你是在哪里买这本书的？ - Where did you buy this book?"""
    who = third_person(draw)
    word, zh = draw.pick((("where", "在哪里"), ("when", "什么时候")))
    act = action(draw, Use.PAST, Style.KNOWN, who)
    return question(join(word, "did", who.en, act.en(act.verb.base)), f"{who.zh}是{zh}{act.zh}的", act.combos)


def when_question(draw: Draw) -> Phrase:
    """你什么时候会卖你的车？ - When will you sell your car? 你在哪里打网球？ - Where do you play tennis?"""
    who = third_person(draw)
    if draw.chance(0.5):
        act = action(draw, Use.FUTURE, Style.KNOWN, who)
        return question(join("when will", who.en, act.en(act.verb.base)), f"{who.zh}什么时候会{act.zh}", act.combos)
    act = action(draw, Use.HABIT, Style.GENERIC, who)
    word, zh = ("where", "在哪里") if act.places and draw.chance(0.7) else ("when", "什么时候")
    return question(join(word, DO[who.agreement], who.en, act.en(act.verb.base)), who.zh + zh + act.zh, act.combos)


def why_question(draw: Draw) -> Phrase:
    """你为什么买了这本书？ - Why did you buy this book?"""
    who = third_person(draw)
    kind = draw.below(3)
    if kind == 0:
        act = action(draw, Use.PLAN, Style.KNOWN, who)
        return question(join("why did", who.en, act.en(act.verb.base)), f"{who.zh}为什么{act.zh_done}", act.combos)
    if kind == 1:
        act = action(draw, Use.PLAN, Style.SCOPE, who)
        return question(join("why didn't", who.en, act.en(act.verb.base)), f"{who.zh}为什么没{act.zh}", act.combos)
    verb, zh = draw.pick(WISHES)
    act = action(draw, Use.PLAN, Style.NEW, who)
    en = join("why", DO[who.agreement], who.en, verb.base, "to", act.en(act.verb.base))
    return question(en, f"{who.zh}为什么{zh}{act.zh}", act.combos)


def which_question(draw: Draw) -> Phrase:
    """你喜欢哪本书？ - Which book do you like?"""
    who = third_person(draw)
    noun = draw.pick(CHOSEN_NOUNS)
    adjective = adjective_for(draw, noun, 0.3)
    singular, _, zh = heads(noun, adjective)
    combos = (Combo(Role.VERB, "like", noun.en), *describes(adjective, noun))
    en = f"which {singular} {DO[who.agreement]} {who.en} like"
    return question(en, f"{who.zh}喜欢哪{noun.measure}{zh}", combos)


def how_many_question(draw: Draw) -> Phrase:
    """你买了几本书？ - How many books did you buy?"""
    who = third_person(draw)
    frame = draw.pick(COUNTING_FRAMES)
    noun = draw.pick(frame.objects)
    counted = f"{lex.plural_of(noun.unit)} of {noun.en}" if noun.kind is Kind.MASS else noun.plural
    en = f"how many {counted} did {who.en} {frame.verb.base}"
    return question(en, f"{who.zh}{frame.zh}了几{noun.measure}{noun.zh}", (Combo(Role.VERB, frame.verb.base, noun.en),))


COUNTING_FRAMES = tuple(
    frame
    for frame in lex.FRAMES
    if Det.NUMBER in frame.dets and Use.PAST in frame.uses and all(noun.kind is not Kind.PAIR for noun in frame.objects)
)


CHOSEN_NOUNS = lex.CLOTHES[:6] + lex.nouns(
    "book movie song hat watch car bicycle computer phone camera lamp sofa painting language city restaurant hotel cup"
)


OWNED_NOUNS = lex.CLOTHES[:6] + lex.nouns(
    "hat watch scarf ring car bicycle computer phone camera guitar piano umbrella bag pen pencil notebook"
    " dictionary dog cat horse rabbit room house kitchen garden office bed sofa chair cup key lamp radio ball robot"
    " model program"
)


def color_question(draw: Draw) -> Phrase:
    """你的车是什么颜色的？ - What color is your car?"""
    noun = draw.pick(COLORED_NOUNS)
    owner = draw.pick((YOU, HE, SHE, name_subject(draw)))
    thing = possessed(noun, whose(owner), owner.zh)
    return question(f"what color {be_for(noun)} {thing.en}", thing.zh + "是什么颜色的")


def price_question(draw: Draw) -> Phrase:
    """这顶帽子多少钱？ - How much is this hat?"""
    noun = draw.pick(PRICED_NOUNS)
    thing = demonstrative(noun, draw.chance(0.5), adjective_for(draw, noun, 0.4))
    return question(f"how much is {thing.en}", thing.zh + "多少钱", thing.combos)


def whose_question(draw: Draw) -> Phrase:
    """这是谁的新帽子？ - Whose new hat is this?"""
    noun = draw.pick([noun for noun in OWNED_NOUNS if noun.kind is Kind.COUNT])
    adjective = adjective_for(draw, noun, 0.4)
    singular, _, zh = heads(noun, adjective)
    this_en, this_zh = draw.pick((("this", "这"), ("that", "那")))
    return question(f"whose {singular} is {this_en}", f"{this_zh}是谁的{zh}", describes(adjective, noun))


def be_for(noun: Noun) -> str:
    """Choose "is" or "are" after a noun with "the" or "my": "the car is", "the shoes are"."""
    return "are" if noun.kind is Kind.PAIR else "is"


PRICED_NOUNS = (
    *lex.CLOTHES, *lex.WORN_ON_HEAD_OR_HAND, *lex.MACHINES, *lex.FURNITURE[:5], *lex.FRUIT, *lex.DRINKS[:5],
    *lex.nouns("book dictionary map ticket umbrella bag knife hammer saw piano guitar violin car bicycle cake"),
)  # fmt: skip
COLORED_NOUNS = tuple(noun for noun in OWNED_NOUNS if any(noun in color.nouns for color in lex.COLORS))


# Constructions: what things and people are


def identity(draw: Draw) -> Phrase:
    """这是我的书。 - This is my book. 那是一把锯子。 - That is a saw. 这是你的钢笔吗？ - Is this your pen?"""
    this_en, this_zh = draw.pick((("this", "这"), ("that", "那")))
    kind = draw.below(5)
    if kind <= 1:
        noun = draw.pick([noun for noun in OWNED_NOUNS if noun.kind is Kind.COUNT])
        owner = named_owner(draw)
        thing = possessed(noun, whose(owner), owner.zh, adjective_for(draw, noun, 0.4))
        if kind == 0:
            return question(f"is {this_en} {thing.en}", f"{this_zh}是{thing.zh}吗", thing.combos)
        return statement(f"{this_en} is {thing.en}", f"{this_zh}是{thing.zh}", thing.combos)
    noun = draw.pick(SHOWN_NOUNS)
    adjective = adjective_for(draw, noun, 0.5)
    if kind == 2:
        thing = in_scope(noun, False, adjective)
        return statement(f"{this_en} isn't {thing.en}", f"{this_zh}不是{thing.zh}", thing.combos)
    thing = indefinite(noun, adjective)
    return statement(f"{this_en} is {thing.en}", f"{this_zh}是{thing.zh}", thing.combos)


# Nouns that mean one thing only when they stand alone: not "bat" and "letter".
CLEAR_NOUNS = tuple(noun for noun in lex.NOUNS.values() if noun.en not in ("bat", "letter", "fly"))
SHOWN_NOUNS = tuple(noun for noun in CLEAR_NOUNS if noun.kind is Kind.COUNT and noun not in lex.PEOPLE)


def profession(draw: Draw) -> Phrase:
    """她是一位有名的作家。 - She is a famous writer. 汤姆不是老师。 - Tom isn't a teacher."""
    who = draw.pick(
        (I, YOU, HE, SHE, name_subject(draw), name_subject(draw), family_subject(draw), family_subject(draw))
    )
    noun = draw.pick(lex.PROFESSIONS)
    role = in_scope(noun, False, None)
    kind = draw.below(4)
    if kind == 0:
        return statement(f"{who.en} {BE_NOT[who.agreement]} {role.en}", f"{who.zh}不是{role.zh}")
    if kind == 1:
        return question(f"{BE[who.agreement]} {who.en} {role.en}", f"{who.zh}是{role.zh}吗")
    if kind == 2:
        return statement(f"{who.en} {who.present(lex.WANT)} to be {role.en}", f"{who.zh}想当{role.zh}")
    thing = indefinite(noun, adjective_for(draw, noun, 0.6))
    return statement(f"{who.en} {BE[who.agreement]} {thing.en}", f"{who.zh}是{thing.zh}", thing.combos)


def described(draw: Draw, noun: Noun) -> tuple[Phrase, str]:
    """Draw a thing before the verb with its form of "be": "the car" - 车, "those books" - 那些书."""
    kind = draw.below(6)
    if kind <= 1 or noun.kind is Kind.MASS or (kind == 2 and noun in lex.PEOPLE):
        return demonstrative(noun, draw.chance(0.5)), "is"
    if kind == 2 and noun in PLURAL_NOUNS and noun.kind is Kind.COUNT:
        number = draw.pick(lex.NUMBERS[:4]) if draw.chance(0.5) else None
        return demonstrative_plural(noun, draw.chance(0.5), number), "are"
    if kind <= 4 and noun in OWNED_NOUNS:
        owner = named_owner(draw)
        return possessed(noun, whose(owner), owner.zh), be_for(noun)
    if noun in lex.PEOPLE and noun not in lex.PROFESSIONS:
        return demonstrative(noun, draw.chance(0.5)), "is"
    return topic(noun), be_for(noun)


def quality(draw: Draw) -> Phrase:
    """这块手表非常贵。 - This watch is very expensive. 盒子不重。 - The box isn't heavy."""
    adjective = draw.pick(lex.ADJECTIVES)
    noun = draw.pick(adjective.nouns)
    thing, be = described(draw, noun)
    combos = (*thing.combos, *describes(adjective, noun))
    kind = draw.below(6)
    if kind == 0:
        return statement(f"{thing.en} {be} very {adjective.en}", f"{thing.zh}非常{adjective.bare}", combos)
    if kind == 1:
        return statement(f"{thing.en} {be}n't {adjective.en}", f"{thing.zh}不{adjective.bare}", combos)
    if kind == 2:
        return question(f"{be} {thing.en} {adjective.en}", f"{thing.zh}{adjective.bare}吗", combos)
    if kind == 3 and adjective.en in EXCESSIVE:
        return statement(f"{thing.en} {be} too {adjective.en}", f"{thing.zh}太{adjective.bare}了", combos)
    return statement(f"{thing.en} {be} {adjective.en}", f"{thing.zh}很{adjective.bare}", combos)


# What is a fault when there is too much of it.
EXCESSIVE = (
    "big", "small", "old", "long", "short", "tall", "heavy", "light", "hard", "expensive", "boring", "hot", "sweet",
    "dirty", "slow", "fast",
)  # fmt: skip


def color(draw: Draw) -> Phrase:
    """我的车是浅蓝色的。 - My car is light blue. 这顶帽子是红色的吗？ - Is this hat red?"""
    color_of = draw.pick(lex.COLORS)
    noun = draw.pick(color_of.nouns)
    thing, be = described(draw, noun)
    combos = (*thing.combos, *describes(color_of, noun))
    kind = draw.below(4)
    if kind == 0:
        return statement(f"{thing.en} {be}n't {color_of.en}", f"{thing.zh}不是{color_of.before}", combos)
    if kind == 1:
        return question(f"{be} {thing.en} {color_of.en}", f"{thing.zh}是{color_of.before}吗", combos)
    return statement(f"{thing.en} {be} {color_of.en}", f"{thing.zh}是{color_of.before}", combos)


COMPARED = tuple(
    adjective
    for adjective in lex.ADJECTIVES
    if adjective.comparative
    or adjective.en in ("interesting", "boring", "expensive", "beautiful", "comfortable", "important")
)


def comparative_of(adjective: Adjective) -> str:
    """Build the English comparative: "bigger", "more expensive"."""
    return adjective.comparative or "more " + adjective.en


def comparison(draw: Draw) -> Phrase:
    """这只猫比那条狗大。 - This cat is bigger than that dog."""
    adjective = draw.pick(COMPARED)
    noun = draw.pick(adjective.nouns)
    other = draw.pick([other for other in adjective.nouns if GROUP_OF.get(other, other) == GROUP_OF.get(noun, noun)])
    first, second = demonstrative(noun, True), demonstrative(other, False)
    combos = (*describes(adjective, noun), *describes(adjective, other))
    kind = draw.below(5)
    if kind == 0:
        en = f"{first.en} is as {adjective.en} as {second.en}"
        return statement(en, f"{first.zh}和{second.zh}一样{adjective.bare}", combos)
    if kind == 1:
        en = f"is {first.en} {comparative_of(adjective)} than {second.en}"
        return question(en, f"{first.zh}比{second.zh}{adjective.bare}吗", combos)
    en = f"{first.en} is {comparative_of(adjective)} than {second.en}"
    return statement(en, f"{first.zh}比{second.zh}{adjective.bare}", combos)


GROUPS = (
    lex.ANIMALS + lex.PETS,
    lex.PEOPLE + lex.nouns("friend neighbor"),
    lex.CLOTHES + lex.WORN_ON_HEAD_OR_HAND,
    lex.FRUIT + lex.VEGETABLES + lex.nouns("cake cookie sandwich bread chocolate noodles egg meat fish"),
    lex.DRINKS + lex.nouns("soup"),
    lex.VEHICLES + lex.nouns("train plane ship"),
    lex.MACHINES + lex.nouns("robot piano guitar violin"),
    lex.FURNITURE + lex.nouns("box bag basket"),
    lex.BOOKS + lex.nouns("letter article story poem"),
    lex.nouns("sentence word question"),
    lex.nouns("exam lesson"),
    lex.BUILDINGS + lex.nouns("house factory"),
    lex.nouns("room kitchen classroom office"),
    lex.nouns("garden park village city zoo"),
    lex.nouns("river lake"),
    lex.nouns("cup bowl plate bottle spoon"),
)
GROUP_OF: dict[Noun, Noun | int] = {noun: number for number, group in enumerate(GROUPS) for noun in group}


def person_comparison(draw: Draw) -> Phrase:
    """汤姆比他爸爸高。 - Tom is taller than his father. 我和安娜一样大。 - I am as old as Anna."""
    who = draw.pick((I, YOU, HE, SHE, name_subject(draw), name_subject(draw), family_subject(draw)))
    whom = other_person(draw, who)
    en, comparative, zh, zh_equal = draw.pick(PERSONAL)
    if draw.chance(0.25):
        return statement(f"{who.en} {BE[who.agreement]} as {en} as {whom.en}", f"{who.zh}和{whom.zh}一样{zh_equal}")
    return statement(f"{who.en} {BE[who.agreement]} {comparative} than {whom.en}", f"{who.zh}比{whom.zh}{zh}")


# What people are compared in: adjective, comparative, Chinese after 比, Chinese after 一样. Age is 大 and 小, not 老.
PERSONAL = (
    ("tall", "taller", "高", "高"), ("short", "shorter", "矮", "矮"), ("old", "older", "大", "大"),
    ("young", "younger", "小", "小"), ("smart", "smarter", "聪明", "聪明"), ("strong", "stronger", "强壮", "强壮"),
)  # fmt: skip


def state(draw: Draw) -> Phrase:
    """她今天非常高兴。 - She is very happy today. 你累吗？ - Are you tired?"""
    when = draw.pick((NO_TIME, Time("today", "今天"), Time("now", "现在")))
    feeling = draw.pick(lex.STATES)
    kind = draw.below(6)
    who = third_person(draw) if kind == 0 else someone(draw)
    be = BE[who.agreement]
    if kind == 0:
        return question(join(be, who.en, feeling.en, when.en), f"{who.zh}{when.zh}{feeling.zh}吗")
    if kind == 1:
        return statement(join(who.en, BE_NOT[who.agreement], feeling.en, when.en), f"{who.zh}{when.zh}不{feeling.zh}")
    if kind == 2:
        return statement(join(who.en, be, "very", feeling.en, when.en), f"{who.zh}{when.zh}非常{feeling.zh}")
    if kind == 3:
        past = draw.pick(lex.RECENT_TIMES)
        return statement(f"{who.en} {WAS[who.agreement]} {feeling.en} {past.en}", f"{who.zh}{past.zh}很{feeling.zh}")
    if kind == 4 and feeling.en in ("tired", "busy", "hungry", "thirsty", "sleepy", "nervous"):
        return statement(join(who.en, be, "too", feeling.en, when.en), f"{who.zh}{when.zh}太{feeling.zh}了")
    return statement(join(who.en, be, feeling.en, when.en), f"{who.zh}{when.zh}很{feeling.zh}")


def age(draw: Draw) -> Phrase:
    """我女儿十岁。 - My daughter is ten years old."""
    who = draw.pick(
        (I, YOU, HE, SHE, name_subject(draw), name_subject(draw), family_subject(draw), family_subject(draw))
    )
    years = draw.pick(lex.AGES)
    if draw.chance(0.25):
        return question(f"{BE[who.agreement]} {who.en} {years.en} years old", f"{who.zh}{years.zh}岁吗")
    return statement(f"{who.en} {BE[who.agreement]} {years.en} years old", f"{who.zh}{years.zh}岁")


# Constructions: verbs of state


def having(draw: Draw) -> Phrase:
    """我有两只猫。 - I have two cats. 她没有车。 - She doesn't have a car."""
    noun = draw.pick(lex.HAVE_OBJECTS)
    adjective = adjective_for(draw, noun, 0.35)
    kind = draw.below(5)
    if kind <= 1:
        thing = in_scope(noun, False, adjective)
    elif kind == 2 and noun in PLURAL_NOUNS:
        thing = numbered(noun, few(draw), adjective)
    else:
        thing = indefinite(noun, adjective)
    combos = (Combo(Role.VERB, "have", noun.en), *thing.combos)
    if kind == 0:
        who = third_person(draw)
        return question(f"{DO[who.agreement]} {who.en} have {thing.en}", f"{who.zh}有{thing.zh}吗", combos)
    who = someone(draw)
    if kind == 1:
        return statement(f"{who.en} {DO_NOT[who.agreement]} have {thing.en}", f"{who.zh}没有{thing.zh}", combos)
    return statement(f"{who.en} {HAVE[who.agreement]} {thing.en}", f"{who.zh}有{thing.zh}", combos)


def family(draw: Draw) -> Phrase:
    """他有两个姐姐。 - He has two older sisters."""
    who = draw.pick((*PRONOUN_SUBJECTS, name_subject(draw), name_subject(draw)))
    member = draw.pick(lex.FAMILY[2:])
    noun = Noun(member.en, member.zh, "个", lex.plural_of(member.en))
    kind = draw.below(4)
    if kind == 0:
        who = draw.pick((YOU, HE, SHE, THEY, name_subject(draw), name_subject(draw)))
        thing = in_scope(noun, False, None)
        return question(f"{DO[who.agreement]} {who.en} have {thing.en}", f"{who.zh}有{thing.zh}吗")
    if kind == 1:
        thing = in_scope(noun, False, None)
        return statement(f"{who.en} {DO_NOT[who.agreement]} have {thing.en}", f"{who.zh}没有{thing.zh}")
    thing = indefinite(noun) if kind == 2 else numbered(noun, draw.pick(lex.NUMBERS[:4]))
    return statement(f"{who.en} {HAVE[who.agreement]} {thing.en}", f"{who.zh}有{thing.zh}")


ATTITUDES = ((lex.LIKE, "喜欢"), (lex.HATE, "讨厌"))


def liked_thing(draw: Draw) -> Phrase:
    """Draw what one may like: "red apples" - 红色的苹果, "this song" - 这首歌, "playing chess" - 下棋."""
    if draw.chance(0.4):
        act = activity_action(draw.pick(lex.HOBBIES))
        return Phrase(act.en(act.verb.gerund), act.zh)
    noun = draw.pick(lex.LIKED)
    adjective = adjective_for(draw, noun, 0.3)
    thing = bare(noun, adjective) if draw.chance(0.6) else demonstrative(noun, True, adjective)
    return Phrase(thing.en, thing.zh, (Combo(Role.VERB, "like", noun.en), *thing.combos))


def liking(draw: Draw) -> Phrase:
    """她喜欢红色的苹果。 - She likes red apples. 我不喜欢下棋。 - I don't like playing chess."""
    who, thing = regular(draw), liked_thing(draw)
    verb, zh = draw.pick(ATTITUDES)
    if verb is lex.LIKE and draw.chance(0.4):
        return statement(f"{who.en} {DO_NOT[who.agreement]} like {thing.en}", f"{who.zh}不喜欢{thing.zh}", thing.combos)
    return statement(f"{who.en} {who.present(verb)} {thing.en}", who.zh + zh + thing.zh, thing.combos)


def liking_question(draw: Draw) -> Phrase:
    """你喜欢游泳吗？ - Do you like swimming? 你为什么喜欢这首歌？ - Why do you like this song?"""
    who, thing = third_person(draw), liked_thing(draw)
    en = f"{DO[who.agreement]} {who.en} like {thing.en}"
    if draw.chance(0.5):
        return question(en, f"{who.zh}喜欢{thing.zh}吗", thing.combos)
    return question("why " + en, f"{who.zh}为什么喜欢{thing.zh}", thing.combos)


def wanting(draw: Draw) -> Phrase:
    """我想要一杯热茶。 - I want a cup of hot tea. 你需要纸吗？ - Do you need any paper?"""
    verb, zh = draw.pick(((lex.WANT, "想要"), (lex.NEED, "需要")))
    noun = draw.pick(lex.WANTED)
    adjective = adjective_for(draw, noun, 0.35)
    kind = draw.below(5)
    if kind <= 1:
        thing = in_scope(noun, False, adjective)
    elif kind == 2 and noun in PLURAL_NOUNS:
        thing = numbered(noun, few(draw), adjective)
    else:
        thing = indefinite(noun, adjective)
    combos = (Combo(Role.VERB, verb.base, noun.en), *thing.combos)
    if kind == 0:
        who = third_person(draw)
        return question(f"{DO[who.agreement]} {who.en} {verb.base} {thing.en}", f"{who.zh}{zh}{thing.zh}吗", combos)
    who = someone(draw)
    if kind == 1:
        return statement(
            f"{who.en} {DO_NOT[who.agreement]} {verb.base} {thing.en}", f"{who.zh}不{zh}{thing.zh}", combos
        )
    return statement(f"{who.en} {who.present(verb)} {thing.en}", f"{who.zh}{zh}{thing.zh}", combos)


def understanding(draw: Draw) -> Phrase:
    """你理解这个句子吗？ - Do you understand this sentence? 我不记得这个词。 - I don't remember this word."""
    noun = draw.pick(lex.UNDERSTOOD)
    thing = known_object(draw, noun, noun in PLURAL_NOUNS, adjective_for(draw, noun, 0.3))
    verb, zh = draw.pick(((lex.UNDERSTAND, "理解"), (lex.REMEMBER, "记得")))
    combos = (Combo(Role.VERB, verb.base, noun.en), *thing.combos)
    kind = draw.below(3)
    if kind == 0:
        who = third_person(draw)
        return question(join(DO[who.agreement], who.en, verb.base, thing.en), f"{who.zh}{zh}{thing.zh}吗", combos)
    who = someone(draw)
    if kind == 1:
        return statement(
            f"{who.en} {DO_NOT[who.agreement]} {verb.base} {thing.en}", f"{who.zh}不{zh}{thing.zh}", combos
        )
    return statement(f"{who.en} {who.present(verb)} {thing.en}", f"{who.zh}{zh}{thing.zh}", combos)


def feeling_for(draw: Draw) -> Phrase:
    """我想念我妈妈。 - I miss my mother. 她不认识他。 - She doesn't know him."""
    verb, plain, _ = draw.pick(lex.FEELINGS_FOR)
    kind = draw.below(4)
    who = third_person(draw) if kind == 0 else someone(draw)
    whom = other_person(draw, who)
    zh = plain.format(whom.zh)
    if kind == 0:
        return question(f"{DO[who.agreement]} {who.en} {verb.base} {whom.en}", f"{who.zh}{zh}吗")
    if kind == 1 and verb is not lex.LOVE:
        return statement(f"{who.en} {DO_NOT[who.agreement]} {verb.base} {whom.en}", f"{who.zh}不{zh}")
    return statement(f"{who.en} {who.present(verb)} {whom.en}", who.zh + zh)


FACTS = (("name", "名字"), ("age", "年龄"), ("phone number", "电话号码"), ("address", "地址"), ("plan", "计划"))


def something_known(draw: Draw) -> Phrase:
    """Draw what one may know: "her name" - 她的名字, "where Tom lives" - 汤姆住在哪里, "the answer" - 答案."""
    other = draw.pick((HE, SHE, name_subject(draw), name_subject(draw)))
    fact_en, fact_zh = draw.pick(FACTS)
    state_of = draw.pick(lex.STATES)
    return draw.pick(
        (
            Phrase(f"{whose(other)} {fact_en}", f"{other.zh}的{fact_zh}"),
            Phrase(f"{whose(other)} {fact_en}", f"{other.zh}的{fact_zh}"),
            Phrase("the answer", "答案"),
            Phrase(f"where {other.en} lives", f"{other.zh}住在哪里"),
            Phrase(f"where {other.en} works", f"{other.zh}在哪里工作"),
            Phrase(f"how old {other.en} is", f"{other.zh}多大"),
            Phrase(f"why {other.en} is {state_of.en}", f"{other.zh}为什么{state_of.zh}"),
        )
    )


def knowing(draw: Draw) -> Phrase:
    """我知道她的名字。 - I know her name. 我不知道汤姆住在哪里。 - I don't know where Tom lives."""
    thing = something_known(draw)
    if draw.chance(0.3):
        who = third_person(draw)
        return question(f"{DO[who.agreement]} {who.en} know {thing.en}", f"{who.zh}知道{thing.zh}吗")
    who = someone(draw)
    if draw.chance(0.5):
        return statement(f"{who.en} {DO_NOT[who.agreement]} know {thing.en}", f"{who.zh}不知道{thing.zh}")
    return statement(f"{who.en} {who.present(lex.KNOW)} {thing.en}", f"{who.zh}知道{thing.zh}")


# Constructions: places


PLACEABLE = lex.nouns(
    "cat book dictionary magazine newspaper letter map photo ticket pen pencil ruler knife key umbrella phone"
    " camera radio hat watch ring scarf shirt sweater glasses gloves apple banana orange pear egg cup bottle box"
    " bag ball gift spoon hammer saw notebook candle scissors cookie postcard can rope bowl plate"
)


def fitting_spot(draw: Draw, noun: Noun) -> Place:
    """Draw where a small thing is, other than in or under itself."""
    while (spot := draw.pick(lex.SPOTS)).en.endswith(" " + noun.en) or (
        noun.en == "cat" and spot.en.startswith("in the")
    ):
        pass
    return spot


def existence(draw: Draw) -> Phrase:
    """桌子下面有两只猫。 - There are two cats under the table. 椅子上有书吗？ - Is there a book on the chair?"""
    noun = draw.pick(PLACEABLE)
    spot = fitting_spot(draw, noun)
    adjective = adjective_for(draw, noun, 0.35)
    kind = draw.below(6)
    if kind == 0 and noun.kind is Kind.COUNT:
        thing = in_scope(noun, False, adjective)
        return question(f"is there {thing.en} {spot.en}", f"{spot.zh}有{thing.zh}吗", thing.combos)
    if kind == 1:
        thing = in_scope(noun, True, adjective)
        return statement(f"there aren't {thing.en} {spot.en}", f"{spot.zh}没有{thing.zh}", thing.combos)
    if kind == 2 and noun.kind is Kind.COUNT:
        _, plural, zh = heads(noun, adjective)
        en = f"how many {plural} are there {spot.en}"
        return question(en, f"{spot.zh}有几{noun.measure}{zh}", describes(adjective, noun))
    if kind <= 4:
        thing = some(noun, adjective) if draw.chance(0.2) else numbered(noun, few(draw), adjective)
        return statement(f"there are {thing.en} {spot.en}", f"{spot.zh}有{thing.zh}", thing.combos)
    thing = indefinite(noun, adjective)
    return statement(f"there is {thing.en} {spot.en}", f"{spot.zh}有{thing.zh}", thing.combos)


def town(draw: Draw) -> Phrase:
    """车站附近有一家银行。 - There is a bank near the station. 公园在学校后面。 - The park is behind the school."""
    noun = draw.pick(TOWN_NOUNS)
    landmark = draw.pick_other(LANDMARKS, noun)
    relation, zh = draw.pick(RELATIONS)
    spot = Place(f"{relation} the {landmark.en}", landmark.zh + zh)
    kind = draw.below(4)
    if kind == 0:
        return statement(f"the {noun.en} is {spot.en}", f"{noun.zh}在{spot.zh}")
    adjective = adjective_for(draw, noun, 0.4)
    if kind == 1:
        thing = in_scope(noun, False, adjective)
        return question(f"is there {thing.en} {spot.en}", f"{spot.zh}有{thing.zh}吗", thing.combos)
    if kind == 2:
        noun = draw.pick(SEVERAL)
        thing = numbered(noun, draw.pick(lex.NUMBERS[:3]), adjective_for(draw, noun, 0.4))
        return statement(f"there are {thing.en} {spot.en}", f"{spot.zh}有{thing.zh}", thing.combos)
    thing = indefinite(noun, adjective)
    return statement(f"there is {thing.en} {spot.en}", f"{spot.zh}有{thing.zh}", thing.combos)


TOWN_NOUNS = lex.BUILDINGS + lex.nouns("park garden lake bridge house factory river")
SEVERAL = lex.nouns("shop restaurant house bridge")
RELATIONS = (("near", "附近"), ("next to", "旁边"), ("behind", "后面"), ("in front of", "前面"))
LANDMARKS = lex.nouns(
    "station school hospital bank park zoo museum library airport hotel factory supermarket university"
)


def location(draw: Draw) -> Phrase:
    """我的眼镜在桌子上。 - My glasses are on the table. 钥匙在哪里？ - Where is the key?"""
    noun = draw.pick(PLACEABLE)
    thing, be = described(draw, noun)
    kind = draw.below(5)
    if kind == 0:
        return question(f"where {be} {thing.en}", thing.zh + "在哪里", thing.combos)
    spot = fitting_spot(draw, noun)
    if kind == 1:
        return question(f"{be} {thing.en} {spot.en}", f"{thing.zh}在{spot.zh}吗", thing.combos)
    if kind == 2:
        return statement(f"{thing.en} {be}n't {spot.en}", f"{thing.zh}不在{spot.zh}", thing.combos)
    return statement(f"{thing.en} {be} {spot.en}", f"{thing.zh}在{spot.zh}", thing.combos)


def whereabouts(draw: Draw) -> Phrase:
    """我妈妈在厨房里。 - My mother is in the kitchen. 汤姆现在在哪里？ - Where is Tom now?"""
    where = draw.pick(PERSON_PLACES)
    kind = draw.below(5)
    when = draw.pick((NO_TIME, Time("now", "现在")))
    if kind <= 1:
        who = third_person(draw)
        if kind == 0:
            return question(join("where", BE[who.agreement], who.en, when.en), f"{who.zh}{when.zh}在哪里")
        return question(join(BE[who.agreement], who.en, where.en, when.en), f"{who.zh}{when.zh}在{where.zh}吗")
    who = someone(draw)
    if kind == 2:
        return statement(join(who.en, BE_NOT[who.agreement], where.en, when.en), f"{who.zh}{when.zh}不在{where.zh}")
    if kind == 3:
        past_time = draw.pick(lex.RECENT_TIMES)
        return statement(
            f"{who.en} {WAS[who.agreement]} {where.en} {past_time.en}", f"{who.zh}{past_time.zh}在{where.zh}"
        )
    return statement(join(who.en, BE[who.agreement], where.en, when.en), f"{who.zh}{when.zh}在{where.zh}")


PERSON_PLACES = lex.places(
    "home school library park office kitchen restaurant garden station supermarket shop bookstore classroom"
    " hospital bank museum zoo airport hotel beach room village factory university Beijing Shanghai London Paris"
    " Tokyo"
)


def going_somewhere(draw: Draw) -> Phrase:
    """我昨天去了公园。 - I went to the park yesterday. 我们去图书馆吧。 - Let's go to the library."""
    goal = draw.pick(lex.GOALS)
    kind = draw.below(8)
    if kind == 0:
        return statement(f"let's go {goal.en}", f"我们去{goal.zh}吧")
    if kind <= 2:
        who, when = third_person(draw), draw.pick(lex.RECENT_TIMES)
        if kind == 1:
            return question(f"did {who.en} go {goal.en} {when.en}", f"{who.zh}{when.zh}去了{goal.zh}吗")
        return question(f"why did {who.en} go {goal.en} {when.en}", f"{who.zh}{when.zh}为什么去了{goal.zh}")
    who = someone(draw)
    if kind == 3:
        when = draw.pick(lex.SOON)
        return statement(f"{who.en} will go {goal.en} {when.en}", f"{who.zh}{when.zh}会去{goal.zh}")
    if kind == 4:
        when = draw.pick(lex.RECENT_TIMES)
        return statement(f"{who.en} didn't go {goal.en} {when.en}", f"{who.zh}{when.zh}没去{goal.zh}")
    if kind == 5:
        when = draw.pick(lex.HABIT_TIMES)
        return statement(f"{who.en} {who.present(lex.GO)} {goal.en} {when.en}", f"{who.zh}{when.zh}去{goal.zh}")
    when = draw.pick(lex.RECENT_TIMES)
    return statement(f"{who.en} went {goal.en} {when.en}", f"{who.zh}{when.zh}去了{goal.zh}")


TRAVEL = (
    (lex.WALK, "", "走路去"),
    (lex.RIDE, "a bicycle", "骑自行车去"),
    (lex.DRIVE, "", "开车去"),
    (lex.TAKE, "a bus", "坐公共汽车去"),
    (lex.TAKE, "a train", "坐火车去"),
    (lex.TAKE, "a taxi", "坐出租车去"),
    (lex.TAKE, "the subway", "坐地铁去"),
)


def travel(draw: Draw) -> Phrase:
    """她昨天坐公共汽车去了博物馆。 - She took a bus to the museum yesterday."""
    goal = draw.pick(lex.GOALS)
    verb, ride, zh = draw.pick(TRAVEL)
    kind = draw.below(5)
    if kind == 0:
        who = third_person(draw)
        return question(f"how {DO[who.agreement]} {who.en} go {goal.en}", f"{who.zh}怎么去{goal.zh}")
    who = someone(draw)
    if kind == 1:
        when = draw.pick(lex.HABIT_TIMES)
        return statement(join(who.en, who.present(verb), ride, goal.en, when.en), f"{who.zh}{when.zh}{zh}{goal.zh}")
    if kind == 2:
        when = draw.pick(lex.SOON)
        return statement(join(who.en, "will", verb.base, ride, goal.en, when.en), f"{who.zh}{when.zh}会{zh}{goal.zh}")
    if kind == 3:
        when = draw.pick(lex.SOON)
        modal_en, modal_zh = draw.pick(MODALS)
        return statement(join(who.en, modal_en, verb.base, ride, goal.en), f"{who.zh}{modal_zh}{zh}{goal.zh}")
    when = draw.pick(lex.RECENT_TIMES)
    return statement(join(who.en, verb.past, ride, goal.en, when.en), f"{who.zh}{when.zh}{zh}了{goal.zh}")


def flight(draw: Draw) -> Phrase:
    """我爸爸下个星期会坐飞机去巴黎。 - My father will fly to Paris next week."""
    who, city = someone(draw), draw.pick(lex.CITY_NAMES)
    if draw.chance(0.5):
        when = draw.pick(lex.SOON + lex.FUTURE_YEARS)
        return statement(f"{who.en} will fly to {city.en} {when.en}", f"{who.zh}{when.zh}会坐飞机去{city.zh}")
    when = draw.pick(lex.RECENT_TIMES + lex.PAST_YEARS)
    return statement(f"{who.en} flew to {city.en} {when.en}", f"{who.zh}{when.zh}坐飞机去了{city.zh}")


def purpose(draw: Draw) -> Phrase:
    """我们去图书馆看书了。 - We went to the library to read books."""
    who = someone(draw)
    goal_en, goal_zh, verb, thing, zh = draw.pick(ERRANDS)
    errand_en, errand_zh = join(goal_en, "to", verb, thing), goal_zh + zh
    combos = fixed_object(verb, thing)
    kind = draw.below(4)
    if kind == 0:
        when = draw.pick(lex.SOON)
        return statement(f"{who.en} will go {errand_en} {when.en}", f"{who.zh}{when.zh}会去{errand_zh}", combos)
    if kind == 1:
        when = draw.pick(lex.HABIT_TIMES)
        en = f"{who.en} {who.present(lex.GO)} {errand_en} {when.en}"
        return statement(en, f"{who.zh}{when.zh}去{errand_zh}", combos)
    if kind == 2:
        when = draw.pick(lex.RECENT_TIMES)
        return statement(f"{who.en} went {errand_en} {when.en}", f"{who.zh}{when.zh}去{errand_zh}了", combos)
    wish_verb, wish_zh = draw.pick(((lex.WANT, "想"), (lex.NEED, "需要")))
    en = f"{who.en} {who.present(wish_verb)} to go {errand_en}"
    return statement(en, f"{who.zh}{wish_zh}去{errand_zh}", combos)


ERRANDS = (
    ("to the library", "图书馆", "read", "books", "看书"), ("to the library", "图书馆", "study", "English", "学习英语"),
    ("to the park", "公园", "play", "tennis", "打网球"), ("to the park", "公园", "fly", "kites", "放风筝"),
    ("to the park", "公园", "take", "photos", "拍照片"), ("to the supermarket", "超市", "buy", "milk", "买牛奶"),
    ("to the supermarket", "超市", "buy", "fruit", "买水果"),
    ("to the bookstore", "书店", "buy", "dictionaries", "买词典"),
    ("to the river", "河边", "catch", "fish", "抓鱼"), ("to the zoo", "动物园", "see", "pandas", "看熊猫"),
    ("to the museum", "博物馆", "see", "paintings", "看画"), ("to the restaurant", "饭馆", "eat", "noodles", "吃面条"),
    ("to the hospital", "医院", "visit", "a friend", "看望朋友"), ("to the bank", "银行", "get", "money", "取钱"),
    ("to the station", "车站", "wait for", "a friend", "等朋友"),
    ("to the airport", "机场", "meet", "a friend", "接朋友"),
)  # fmt: skip


def put(draw: Draw) -> Phrase:
    """请把书放在桌子上。 - Please put the book on the table."""
    noun = draw.pick(PLACEABLE)
    spot = fitting_spot(draw, noun)
    kind = draw.below(5)
    if kind == 0:
        return statement(f"please put the {noun.en} {spot.en}", f"请把{noun.zh}放在{spot.zh}")
    if kind == 1:
        return statement(f"don't put the {noun.en} {spot.en}", f"别把{noun.zh}放在{spot.zh}")
    if kind == 2:
        return question(f"who put the {noun.en} {spot.en}", f"谁把{noun.zh}放在了{spot.zh}")
    who, when = someone(draw), draw.pick(lex.RECENT_TIMES)
    thing = topic(noun) if draw.chance(0.5) else possessed(noun, who.own_en, who.own_zh)
    if kind == 3:
        place = draw.pick(lex.places("bus train plane"))
        return statement(
            f"{who.en} left {thing.en} {place.en} {when.en}", f"{who.zh}{when.zh}把{thing.zh}忘在了{place.zh}"
        )
    return statement(f"{who.en} put {thing.en} {spot.en} {when.en}", f"{who.zh}{when.zh}把{thing.zh}放在了{spot.zh}")


# Constructions: giving and telling


GIFTS = lex.nouns(
    "book dictionary novel magazine map ticket postcard pen pencil notebook umbrella apple orange banana cake"
    " cookie watch hat scarf gift flower ring camera guitar ball kite painting photo key knife cup sweater letter"
    " paper"
)
GIVING = (
    # verb, Chinese before the person, Chinese verb after it, things
    (lex.GIVE, "", "给了", GIFTS),
    (lex.SEND, "给", "寄了", lex.nouns("letter postcard gift book photo map ticket scarf")),
    (lex.BUY, "给", "买了", GIFTS[:-2]),
    (
        lex.verb("show", participle="shown"),
        "给",
        "看了",
        lex.nouns("photo map painting letter book ticket ring watch camera"),
    ),
    (
        lex.verb("lend", "lent"),
        "",
        "借给了",
        lex.nouns("book dictionary umbrella pen pencil bicycle camera novel car ruler"),
    ),
)


def giving(draw: Draw) -> Phrase:
    """我爸爸给了我一块新手表。 - My father gave me a new watch. 她给他买了一本书。 - She bought him a book."""
    verb, before, zh, things = draw.pick(GIVING)
    noun = draw.pick(things)
    who = someone(draw)
    whom = other_person(draw, who)
    adjective = adjective_for(draw, noun, 0.4)
    counted = noun.kind is Kind.COUNT and verb in (lex.GIVE, lex.SEND, lex.BUY) and draw.chance(0.3)
    thing = numbered(noun, draw.pick(lex.NUMBERS[:5]), adjective) if counted else indefinite(noun, adjective)
    combos = (Combo(Role.VERB, verb.base, noun.en), *thing.combos)
    when = draw.pick(lex.RECENT_TIMES) if draw.chance(0.4) else NO_TIME
    given = f"{before}{whom.zh}{zh}{thing.zh}" if before else f"{zh}{whom.zh}{thing.zh}"
    return statement(join(who.en, verb.past, whom.en, thing.en, when.en), who.zh + when.zh + given, combos)


def please_give(draw: Draw) -> Phrase:
    """请给我一杯茶。 - Please give me a cup of tea. 你能借给我你的钢笔吗？ - Can you lend me your pen?"""
    noun = draw.pick(lex.WANTED)
    thing = indefinite(noun, adjective_for(draw, noun, 0.3))
    combos = (Combo(Role.VERB, "give", noun.en), *thing.combos)
    whom = draw.pick((I, HE, SHE, WE, THEY))
    pronoun = next(pronoun for pronoun in lex.PRONOUNS if pronoun.subject == whom.en)
    if draw.chance(0.3):
        return question(f"can you give {pronoun.object} {thing.en}", f"你能给{pronoun.zh}{thing.zh}吗", combos)
    return statement(f"please give {pronoun.object} {thing.en}", f"请给{pronoun.zh}{thing.zh}", combos)


def writing_to(draw: Draw) -> Phrase:
    """我给我的老师写了一封很长的信。 - I wrote a long letter to my teacher."""
    who = someone(draw)
    whom = other_person(draw, who)
    noun = draw.pick(lex.nouns("letter postcard"))
    thing = indefinite(noun, adjective_for(draw, noun, 0.4))
    combos = (Combo(Role.VERB, "write", noun.en), *thing.combos)
    if draw.chance(0.3):
        when = draw.pick(lex.SOON)
        en = f"{who.en} will write {thing.en} to {whom.en} {when.en}"
        return statement(en, f"{who.zh}{when.zh}会给{whom.zh}写{thing.zh}", combos)
    when = draw.pick(lex.RECENT_TIMES + lex.PAST_YEARS)
    en = f"{who.en} wrote {thing.en} to {whom.en} {when.en}"
    return statement(en, f"{who.zh}{when.zh}给{whom.zh}写了{thing.zh}", combos)


def with_person(draw: Draw) -> Phrase:
    """我昨天给我妈妈打了电话。 - I called my mother yesterday. 她明天会看望他。 - She will visit him tomorrow."""
    verb, plain, done = draw.pick(lex.PERSON_VERBS)
    kind = draw.below(5)
    if kind == 0:
        who = third_person(draw)
        whom = other_person(draw, who)
        when = draw.pick(lex.RECENT_TIMES)
        en = f"did {who.en} {verb.base} {whom.en} {when.en}"
        return question(en, f"{who.zh}{when.zh}{done.format(whom.zh)}吗")
    who = someone(draw)
    whom = other_person(draw, who)
    zh = plain.format(whom.zh)
    if kind == 1:
        when = draw.pick(lex.SOON)
        return statement(f"{who.en} will {verb.base} {whom.en} {when.en}", f"{who.zh}{when.zh}会{zh}")
    if kind == 2:
        when = draw.pick(lex.RECENT_TIMES)
        return statement(f"{who.en} didn't {verb.base} {whom.en} {when.en}", f"{who.zh}{when.zh}没{zh}")
    if kind == 3:
        modal_en, modal_zh = draw.pick(MODALS)
        return statement(f"{who.en} {modal_en} {verb.base} {whom.en}", f"{who.zh}{modal_zh}{zh}")
    when = draw.pick(lex.RECENT_TIMES)
    return statement(f"{who.en} {verb.past} {whom.en} {when.en}", f"{who.zh}{when.zh}{done.format(whom.zh)}")


def company(draw: Draw) -> Phrase:
    """我昨天和安娜一起下了棋。 - I played chess with Anna yesterday."""
    who = someone(draw)
    whom = other_person(draw, who)
    act = activity_action(draw.pick(lex.HOBBIES))
    place = place_of(draw, act, 0.4)
    with_zh = f"和{whom.zh}一起"
    kind = draw.below(3)
    if kind == 0:
        en = join(who.en, "often", act.en(who.present(act.verb)), place.en, "with", whom.en)
        return statement(en, f"{who.zh}经常{with_zh}{place.zh}{act.zh}")
    if kind == 1:
        when = draw.pick(lex.SOON)
        en = join(who.en, "will", act.en(act.verb.base), place.en, "with", whom.en, when.en)
        return statement(en, f"{who.zh}{when.zh}会{with_zh}{place.zh}{act.zh}")
    when = draw.pick(lex.RECENT_TIMES)
    en = join(who.en, act.en(act.verb.past), place.en, "with", whom.en, when.en)
    return statement(en, f"{who.zh}{when.zh}{with_zh}{place.zh}{act.zh_done}")


def asking(draw: Draw) -> Phrase:
    """她让我打开窗户。 - She asked me to open the window. 我问了安娜两个问题。 - I asked Anna two questions."""
    who = someone(draw)
    whom = other_person(draw, who)
    kind = draw.below(3)
    if kind == 0:
        noun = lex.NOUNS["question"]
        adjective = adjective_for(draw, noun, 0.6)
        thing = numbered(noun, few(draw), adjective) if draw.chance(0.4) else indefinite(noun, adjective)
        combos = (Combo(Role.VERB, "ask", noun.en), *thing.combos)
        return statement(f"{who.en} asked {whom.en} {thing.en}", f"{who.zh}问了{whom.zh}{thing.zh}", combos)
    if kind == 1:
        act = action(draw, Use.ORDER, Style.KNOWN, who)
        return statement(
            join(who.en, "asked", whom.en, "to", act.en(act.verb.base)), f"{who.zh}让{whom.zh}{act.zh}", act.combos
        )
    act = frame_action(draw, draw.weighted(FRAMES[Use.NOW]), Style.KNOWN, who)
    return statement(join(who.en, "helped", whom.en, act.en(act.verb.base)), f"{who.zh}帮{whom.zh}{act.zh}", act.combos)


def teaching(draw: Draw) -> Phrase:
    """李明教我们中文。 - Li Ming teaches us Chinese."""
    who = draw.pick((name_subject(draw), family_subject(draw), person_subject(draw), HE, SHE))
    whom = draw.pick(lex.PRONOUNS[:2] + lex.PRONOUNS[4:])
    study = draw.pick(lex.SUBJECTS_OF_STUDY)
    kind = draw.below(3)
    if kind == 0:
        when = draw.pick(lex.SOON + lex.FUTURE_YEARS)
        return statement(
            f"{who.en} will teach {whom.object} {study.en} {when.en}", f"{who.zh}{when.zh}会教{whom.zh}{study.zh}"
        )
    if kind == 1:
        want = who.present(lex.WANT)
        return statement(f"{who.en} {want} to teach {whom.object} {study.en}", f"{who.zh}想教{whom.zh}{study.zh}")
    return statement(f"{who.en} {who.present(lex.TEACH)} {whom.object} {study.en}", f"{who.zh}教{whom.zh}{study.zh}")


# Constructions: relative clauses


def bought_thing(draw: Draw) -> tuple[Noun, Phrase]:
    """Draw a thing with a relative clause: "the book that I bought yesterday" - 我昨天买的书."""
    frame = draw.pick(RELATIVE_FRAMES)
    noun = draw.pick([noun for noun in frame.objects if noun.kind is not Kind.MASS])
    while (who := someone(draw)).en.startswith("that "):
        pass
    when = draw.pick(lex.RECENT_TIMES) if draw.chance(0.5) or frame.verb.past == frame.verb.base else NO_TIME
    en = join("the", noun.en, "that", who.en, frame.verb.past, when.en)
    return noun, Phrase(en, f"{who.zh}{when.zh}{frame.zh}的{noun.zh}", (Combo(Role.VERB, frame.verb.base, noun.en),))


RELATIVE_FRAMES = tuple(
    frame
    for frame in lex.FRAMES
    if frame.verb in (lex.BUY, lex.BORROW, lex.READ, lex.WRITE, lex.MAKE, lex.SELL, lex.TAKE, lex.RECEIVE)
    and Use.PAST in frame.uses
)


def relative_object(draw: Draw) -> Phrase:
    """我昨天买的书非常有趣。 - The book that I bought yesterday is very interesting."""
    noun, thing = bought_thing(draw)
    be = "are" if noun.kind is Kind.PAIR else "is"
    fitting = lex.ADJECTIVES_OF[noun]
    if fitting and draw.chance(0.7):
        adjective = draw.pick(fitting)
        combos = (*thing.combos, *describes(adjective, noun))
        if not adjective.bare:
            return statement(f"{thing.en} {be} {adjective.en}", f"{thing.zh}是{adjective.before}", combos)
        very, very_zh = draw.pick((("", "很"), ("very", "非常")))
        return statement(join(thing.en, be, very, adjective.en), thing.zh + very_zh + adjective.bare, combos)
    who = someone(draw)
    return statement(f"{who.en} {who.present(lex.LIKE)} {thing.en}", f"{who.zh}喜欢{thing.zh}", thing.combos)


def relative_subject(draw: Draw) -> Phrase:
    """正在看一份报纸的男人是我的老师。 - The man who is reading a newspaper is my teacher."""
    noun = draw.pick(lex.nouns("man woman boy girl student child"))
    own, own_zh = {"man": ("his", "他"), "boy": ("his", "他")}.get(noun.en, ("her", "她"))
    act = action(draw, Use.NOW, Style.SINGLE, Subject("", "", Agreement.SINGULAR, own, own_zh))
    place = place_of(draw, act)
    en = join(f"the {noun.en} who is", act.en(act.verb.gerund), place.en)
    zh = f"{progressive(place)}{act.zh}的{noun.zh}"
    kind = draw.below(3)
    if kind == 0:
        who = third_person(draw)
        return question(f"{DO[who.agreement]} {who.en} know {en}", f"{who.zh}认识{zh}吗", act.combos)
    if kind == 1:
        who = someone(draw)
        return statement(f"{who.en} {who.present(lex.KNOW)} {en}", f"{who.zh}认识{zh}", act.combos)
    owner = draw.pick(SINGULAR_OWNERS)
    role = draw.pick(
        lex.nouns("friend neighbor teacher") if noun.en in ("man", "woman") else lex.nouns("friend neighbor")
    )
    return statement(f"{en} is {owner.own_en} {role.en}", f"{zh}是{owner.zh}的{role.zh}", act.combos)


# Constructions: animals and machines


def animal(draw: Draw) -> Phrase:
    """一只猫正在沙发上睡觉。 - A cat is sleeping on the sofa."""
    nouns, activity = draw.pick(lex.ANIMAL_ACTIVITIES)
    noun = draw.pick(nouns)
    act = activity_action(activity)
    place = place_of(draw, act, 0.7)
    adjective = adjective_for(draw, noun, 0.3)
    doing, zh = join(act.en(act.verb.gerund), place.en), progressive(place) + act.zh
    if draw.chance(0.25):
        animals = numbered(noun, draw.pick(lex.NUMBERS[:4]), adjective)
        return statement(f"{animals.en} are {doing}", animals.zh + zh, animals.combos + act.combos)
    one = draw.pick(
        (demonstrative(noun, draw.chance(0.5), adjective), topic(noun, adjective), indefinite(noun, adjective))
    )
    return statement(f"{one.en} is {doing}", one.zh + zh, one.combos + act.combos)


def creature(draw: Draw) -> Phrase:
    """一只蝙蝠正在天空中飞。 - A bat is flying in the sky."""
    noun = draw.pick((lex.ANIMAL_BAT, lex.ANIMAL_BAT, *lex.nouns("bird bee butterfly fly duck")))
    where = draw.pick((Place("in the sky", "天空中"), Place("over the river", "河上")))
    kind = draw.below(4)
    several = numbered(noun, few(draw))
    if kind == 0:
        return statement(f"{several.en} are flying {where.en}", f"{several.zh}正在{where.zh}飞")
    one = demonstrative(noun, draw.chance(0.5)) if draw.chance(0.5) else indefinite(noun)
    if kind <= 2:
        return statement(f"{one.en} is flying {where.en}", f"{one.zh}正在{where.zh}飞")
    who = someone(draw)
    seen = draw.pick((indefinite(noun), several))
    combos = (Combo(Role.VERB, "see", noun.en),)
    return statement(f"{who.en} saw {seen.en} flying {where.en}", f"{who.zh}看见{seen.zh}在{where.zh}飞", combos)


def machine_topic(draw: Draw) -> Phrase:
    """Draw a machine before the verb: "this model" - 这个模型, "our robot" - 我们的机器人."""
    noun = draw.pick(lex.nouns("model model model robot computer program"))
    return draw.pick(
        (topic(noun), demonstrative(noun, True), demonstrative(noun, False), possessed(noun, "our", "我们"))
    )


def machine(draw: Draw) -> Phrase:
    """这个模型能理解中文。 - This model can understand Chinese."""
    thing = machine_topic(draw)
    kind = draw.below(4)
    if kind == 0:
        language = draw.pick(lex.LANGUAGES)
        can_en, can_zh = draw.pick((("can", "能"), ("can't", "不能"), ("will", "会")))
        return statement(f"{thing.en} {can_en} understand {language.en}", f"{thing.zh}{can_zh}理解{language.zh}")
    if kind == 1:
        data_en, data_zh = draw.pick((("more", "更多的"), ("new", "新"), ("our", "我们的")))
        return statement(f"{thing.en} needs {data_en} data", f"{thing.zh}需要{data_zh}数据")
    modal_en, modal_zh = draw.pick(
        (("can", "能"), ("can't", "不能"), ("will", "会"), ("should", "应该"), ("must", "必须"))
    )
    task_en, task_zh = draw.pick(MACHINE_TASKS)
    return statement(f"{thing.en} {modal_en} {task_en}", f"{thing.zh}{modal_zh}{task_zh}")


MACHINE_TASKS = (
    ("learn from this data", "从这些数据中学习"), ("learn many words", "学很多词"),
    ("learn two languages", "学两种语言"),
    ("learn a new language", "学一种新语言"), ("learn the meaning of this word", "学这个词的意思"),
    ("pay attention to this word", "注意这个词"), ("pay attention to every word", "注意每个词"),
    ("pay attention to this sentence", "注意这个句子"), ("answer this question", "回答这个问题"),
)  # fmt: skip


def machine_translation(draw: Draw) -> Phrase:
    """模型把这个句子翻译成法语。 - The model translates this sentence into French."""
    thing = machine_topic(draw)
    text = draw.pick(lex.nouns("sentence word article letter story poem"))
    what = draw.pick((demonstrative(text, True), demonstrative_plural(text, True, None)))
    combos = (Combo(Role.VERB, "translate", text.en),)
    language = draw.pick(lex.LANGUAGES)
    return draw.pick(
        (
            statement(
                f"{thing.en} translates {what.en} into {language.en}",
                f"{thing.zh}把{what.zh}翻译成{language.zh}",
                combos,
            ),
            statement(
                f"{thing.en} can translate {what.en} into {language.en}",
                f"{thing.zh}能把{what.zh}翻译成{language.zh}",
                combos,
            ),
            question(
                f"can {thing.en} translate {what.en} into {language.en}",
                f"{thing.zh}能把{what.zh}翻译成{language.zh}吗",
                combos,
            ),
        )
    )


def training(draw: Draw) -> Phrase:
    """我们会用新数据训练这个模型。 - We will train this model with new data."""
    who = someone(draw)
    modal_en, modal_zh = draw.pick((*MODALS, ("will", "会")))
    model_en, model_zh = draw.pick(
        (("this model", "这个模型"), ("our model", "我们的模型"), ("this robot", "这个机器人"))
    )
    data_en, data_zh = draw.pick((("this", "这些"), ("more", "更多的"), ("our", "我们的"), ("new", "新")))
    combos = (Combo(Role.VERB, "train", model_en.split()[-1]),)
    en = f"{who.en} {modal_en} train {model_en} with {data_en} data"
    return statement(en, f"{who.zh}{modal_zh}用{data_zh}数据训练{model_zh}", combos)


def judgement(draw: Draw) -> Phrase:
    """你的翻译是对的。 - Your translation is right. 这个答案是错的。 - This answer is wrong."""
    word, zh = draw.pick((("translation", "翻译"), ("translation", "翻译"), ("answer", "答案")))
    owner = named_owner(draw)
    thing = draw.pick(
        (
            Phrase(f"this {word}", f"这个{zh}"),
            Phrase(f"that {word}", f"那个{zh}"),
            Phrase(f"{whose(owner)} {word}", f"{owner.zh}的{zh}"),
        )
    )
    right, right_zh = draw.pick((("right", "对"), ("wrong", "错")))
    if draw.chance(0.4):
        return question(f"is {thing.en} {right}", f"{thing.zh}是{right_zh}的吗")
    who = someone(draw)
    if draw.chance(0.5):
        return statement(
            f"{who.en} {who.present(lex.THINK)} {thing.en} is {right}", f"{who.zh}觉得{thing.zh}是{right_zh}的"
        )
    return statement(f"{thing.en} is {right}", f"{thing.zh}是{right_zh}的")


# Constructions: weather, health, time and manner


SEASONS = (
    # season, what it is like
    ("in spring", "春天", "warm", "暖和"), ("in summer", "夏天", "hot", "热"), ("in autumn", "秋天", "cool", "凉快"),
    ("in winter", "冬天", "cold", "冷"),
)  # fmt: skip
WEATHER = (("cold", "冷"), ("hot", "热"), ("warm", "暖和"), ("cool", "凉快"))
FALLING = (("rain", "raining", "下雨"), ("snow", "snowing", "下雪"))


def climate(draw: Draw) -> Phrase:
    """北京冬天很冷。 - It is cold in Beijing in winter."""
    city = draw.pick(lex.CITIES)
    season, season_zh, adjective, zh = draw.pick(SEASONS)
    return draw.pick(
        (
            statement(f"it is {adjective} {city.en} {season}", f"{city.zh}{season_zh}很{zh}"),
            question(f"is it {adjective} {city.en} {season}", f"{city.zh}{season_zh}{zh}吗"),
            statement(f"it often rains {city.en} {season}", f"{city.zh}{season_zh}经常下雨"),
            question(f"does it often rain {city.en} {season}", f"{city.zh}{season_zh}经常下雨吗"),
            statement(f"it often snows {city.en} in winter", f"{city.zh}冬天经常下雪"),
        )
    )


def seasonal(draw: Draw) -> Phrase:
    """她夏天经常在河里游泳。 - She often swims in the river in summer."""
    who = regular(draw)
    act = activity_action(draw.pick(lex.HOBBIES))
    place = place_of(draw, act)
    season, season_zh, _, _ = draw.pick(SEASONS)
    often, often_zh = draw.pick((("often", "经常"), ("usually", "通常"), ("sometimes", "有时候")))
    en = join(who.en, often, act.en(who.present(act.verb)), place.en, season)
    return statement(en, f"{who.zh}{season_zh}{often_zh}{place.zh}{act.zh}")


def weather(draw: Draw) -> Phrase:
    """巴黎明天会下雨。 - It will rain in Paris tomorrow. 伦敦昨天很冷。 - It was cold in London yesterday."""
    city = draw.pick(lex.CITIES)
    adjective, zh = draw.pick(WEATHER)
    fall, falling, fall_zh = draw.pick(FALLING)
    past, soon = draw.pick(lex.RECENT_TIMES), draw.pick(lex.SOON[:7])
    return draw.pick(
        (
            statement(f"it isn't {adjective} {city.en} today", f"{city.zh}今天不{zh}"),
            statement(f"it was {adjective} {city.en} {past.en}", f"{city.zh}{past.zh}很{zh}"),
            statement(f"it will be {adjective} {city.en} {soon.en}", f"{city.zh}{soon.zh}会很{zh}"),
            statement(f"it {fall}ed {city.en} {past.en}", f"{city.zh}{past.zh}{fall_zh}了"),
            statement(f"it didn't {fall} {city.en} {past.en}", f"{city.zh}{past.zh}没{fall_zh}"),
            statement(f"it will {fall} {city.en} {soon.en}", f"{city.zh}{soon.zh}会{fall_zh}"),
            question(f"will it {fall} {city.en} {soon.en}", f"{city.zh}{soon.zh}会{fall_zh}吗"),
            statement(f"it is {falling} {city.en} now", f"{city.zh}现在正在{fall_zh}"),
            statement(f"there was a strong wind {city.en} {past.en}", f"{city.zh}{past.zh}刮了大风"),
            statement(f"there was heavy rain {city.en} {past.en}", f"{city.zh}{past.zh}下了大雨"),
        )
    )


AILMENTS = (("a cold", "感冒了"), ("a fever", "发烧了"), ("a headache", "头疼"))
BODY = (("hand", "手"), ("foot", "脚"), ("leg", "腿"), ("eye", "眼"))
SIDES = (("left", "左"), ("right", "右"))


def health(draw: Draw) -> Phrase:
    """我感冒了。 - I have a cold. 他的左手很疼。 - His left hand hurts."""
    kind = draw.below(3)
    if kind == 0:
        owner = draw.pick((*SINGULAR_OWNERS, name_subject(draw), name_subject(draw)))
        side, side_zh = draw.pick(SIDES)
        part, part_zh = draw.pick(BODY)
        when = draw.pick((NO_TIME, Time("today", "今天"), Time("now", "现在")))
        en = join(whose(owner), side, part, "hurts", when.en)
        return statement(en, f"{owner.zh}的{side_zh}{part_zh}{when.zh}很疼")
    who = someone(draw)
    ailment, zh = draw.pick(AILMENTS)
    if kind == 1:
        return statement(f"{who.en} {HAVE[who.agreement]} {ailment}", who.zh + zh)
    when = draw.pick(lex.RECENT_TIMES)
    return statement(f"{who.en} had {ailment} {when.en}", who.zh + when.zh + zh)


DAILY = (
    # English, third person, Chinese, first and last hour
    ("get up", "gets up", "起床", 5, 9), ("go to bed", "goes to bed", "睡觉", 8, 12),
    ("have breakfast", "has breakfast", "吃早饭", 6, 10), ("have lunch", "has lunch", "吃午饭", 11, 12),
    ("have dinner", "has dinner", "吃晚饭", 5, 9), ("go to school", "goes to school", "去学校", 6, 10),
    ("go to work", "goes to work", "去上班", 6, 10), ("come home", "comes home", "回家", 3, 11),
)  # fmt: skip


def daily_routine(draw: Draw) -> Phrase:
    """我每天七点起床。 - I get up at seven o'clock every day. 她几点回家？ - What time does she come home?"""
    plain, third, zh, first, last = draw.pick(DAILY)
    hour = draw.pick(lex.HOURS[first - 1 : last])
    kind = draw.below(5)
    who = third_person(draw) if kind == 0 else someone(draw)
    while plain == "go to work" and any(
        word in who.en for word in ("child", "boy", "girl", "student", "son", "daughter")
    ):
        who = third_person(draw)
    if kind == 0:
        return question(f"what time {DO[who.agreement]} {who.en} {plain}", f"{who.zh}几点{zh}")
    verb = third if who.agreement is Agreement.SINGULAR else plain
    if kind == 1:
        when = draw.pick(lex.SOON[:1] + lex.WEEKDAYS)
        return statement(f"{who.en} will {plain} at {hour.en} o'clock {when.en}", f"{who.zh}{when.zh}{hour.zh}点会{zh}")
    if kind == 2:
        adverb = draw.pick(lex.ADVERBS[:4])
        return statement(f"{who.en} {adverb.en} {verb} at {hour.en} o'clock", f"{who.zh}{adverb.zh}{hour.zh}点{zh}")
    return statement(f"{who.en} {verb} at {hour.en} o'clock every day", f"{who.zh}每天{hour.zh}点{zh}")


MEALS = (("breakfast", "早饭"), ("lunch", "午饭"), ("dinner", "晚饭"))


def meal(draw: Draw) -> Phrase:
    """他们昨天在饭馆吃了午饭。 - They had lunch at the restaurant yesterday."""
    name, zh = draw.pick(MEALS)
    day_past = draw.pick((lex.RECENT_TIMES[0], *lex.RECENT_TIMES[5:]))
    place = draw.pick(lex.places("home school restaurant hotel office"))
    who = someone(draw)
    kind = draw.below(5)
    if kind == 0:
        return statement(f"{who.en} had {name} {place.en} {day_past.en}", f"{who.zh}{day_past.zh}在{place.zh}吃了{zh}")
    if kind == 1:
        when = draw.pick(lex.SOON[:1] + lex.WEEKDAYS)
        return statement(f"{who.en} will have {name} {place.en} {when.en}", f"{who.zh}{when.zh}会在{place.zh}吃{zh}")
    if kind == 2:
        asked = third_person(draw)
        return question(f"what {DO[asked.agreement]} {asked.en} eat for {name}", f"{asked.zh}{zh}吃什么")
    food = draw.pick(lex.nouns("egg noodles bread rice tomato banana apple potato cake meat fish"))
    adverb = draw.pick(lex.ADVERBS[:4])
    en = f"{who.en} {adverb.en} {who.present(lex.EAT)} {food.plural} for {name}"
    return statement(en, f"{who.zh}{zh}{adverb.zh}吃{food.zh}", (Combo(Role.VERB, "eat", food.en),))


def appointment(draw: Draw) -> Phrase:
    """我星期一有一场重要的考试。 - I have an important exam on Monday."""
    noun = draw.pick(lex.nouns("exam meeting match lesson"))
    thing = indefinite(noun, adjective_for(draw, noun, 0.5))
    when = draw.pick(lex.SOON[:5] + lex.WEEKDAYS)
    who = someone(draw)
    combos = (Combo(Role.VERB, "have", noun.en), *thing.combos)
    if draw.chance(0.3):
        asked, thing = third_person(draw), in_scope(noun, False, None)
        return question(
            f"{DO[asked.agreement]} {asked.en} have {thing.en} {when.en}",
            f"{asked.zh}{when.zh}有{thing.zh}吗",
            combos[:1],
        )
    return statement(f"{who.en} {HAVE[who.agreement]} {thing.en} {when.en}", f"{who.zh}{when.zh}有{thing.zh}", combos)


def weekday(draw: Draw) -> Phrase:
    """星期六，我们会在公园里打网球。 - On Saturday, we will play tennis in the park."""
    when = draw.pick(lex.WEEKDAYS)
    clause = future_clause(draw, someone(draw), timed=False)
    if draw.chance(0.5):
        return statement(f"{when.en}, {clause.en}", f"{when.zh}，{clause.zh}", clause.combos)
    return statement(f"{clause.en} {when.en}", clause.subject_zh + when.zh + clause.rest_zh, clause.combos)


MANNERS = (
    # verb, English object, Chinese object, Chinese verb, manners
    (lex.RUN, "", "", "跑", "fast slowly"), (lex.SWIM, "", "", "游", "fast slowly well"),
    (lex.WALK, "", "", "走", "fast slowly"),
    (lex.DRIVE, "", "", "开车开", "fast slowly well"), (lex.SING, "", "歌", "唱", "well"),
    (lex.DANCE, "", "", "跳舞跳", "well"),
    *((lex.SPEAK, language.en, language.zh, "说", "well") for language in lex.LANGUAGES),
    (lex.PLAY, "the piano", "钢琴", "弹", "well"), (lex.PLAY, "the guitar", "吉他", "弹", "well"),
    (lex.PLAY, "basketball", "篮球", "打", "well"), (lex.PLAY, "tennis", "网球", "打", "well"),
    (lex.PLAY, "soccer", "足球", "踢", "well"), (lex.PLAY, "chess", "棋", "下", "well"),
)  # fmt: skip
MANNER_ZH = {"fast": "快", "slowly": "慢", "well": "好"}


def manner(draw: Draw) -> Phrase:
    """她中文说得很好。 - She speaks Chinese well. 他跑得非常快。 - He runs very fast."""
    verb, thing, thing_zh, zh, manners = draw.pick(MANNERS)
    adverb = draw.pick(manners.split())
    how = MANNER_ZH[adverb]
    kind = draw.below(4)
    if kind == 0:
        who = third_person(draw)
        return question(join(DO[who.agreement], who.en, verb.base, thing, adverb), f"{who.zh}{thing_zh}{zh}得{how}吗")
    who = someone(draw)
    if kind == 1:
        return statement(
            join(who.en, DO_NOT[who.agreement], verb.base, thing, adverb), f"{who.zh}{thing_zh}{zh}得不{how}"
        )
    very, very_zh = draw.pick((("", "很"), ("very", "非常")))
    return statement(join(who.en, who.present(verb), thing, very, adverb), f"{who.zh}{thing_zh}{zh}得{very_zh}{how}")


DURABLE = (
    # verb, English rest, Chinese verb, Chinese rest after the duration
    (lex.SWIM, "", "游了", "的泳"), (lex.RUN, "", "跑了", "的步"), (lex.WORK, "", "工作了", ""),
    (lex.SLEEP, "", "睡了", ""),
    (lex.REST, "", "休息了", ""), (lex.WALK, "", "走了", "的路"), (lex.DANCE, "", "跳了", "的舞"),
    (lex.STUDY, "English", "学了", "的英语"), (lex.STUDY, "Chinese", "学了", "的中文"),
    (lex.STUDY, "math", "学了", "的数学"),
    (lex.PLAY, "basketball", "打了", "的篮球"), (lex.PLAY, "soccer", "踢了", "的足球"),
    (lex.PLAY, "chess", "下了", "的棋"),
    (lex.PLAY, "the piano", "弹了", "的钢琴"), (lex.WATCH, "TV", "看了", "的电视"),
    (lex.LISTEN_TO, "music", "听了", "的音乐"),
)  # fmt: skip
SPANS = (("hours", "个小时"), ("minutes", "分钟"))


def duration(draw: Draw) -> Phrase:
    """我昨天游了两个小时的泳。 - I swam for two hours yesterday."""
    who = someone(draw)
    verb, thing, zh, zh_rest = draw.pick(DURABLE)
    unit, unit_zh = draw.pick(SPANS)
    number = draw.pick(lex.NUMBERS[:4] if unit == "hours" else lex.TENS)
    when = draw.pick(lex.RECENT_TIMES)
    en = join(who.en, verb.past, thing, "for", number.en, unit, when.en)
    return statement(en, f"{who.zh}{when.zh}{zh}{number.zh}{unit_zh}{zh_rest}")


def fun(draw: Draw) -> Phrase:
    """打篮球真好玩。 - Playing basketball is fun. 数学很难。 - Math is hard."""
    if draw.chance(0.3):
        study = draw.pick(lex.SUBJECTS_OF_STUDY)
        word, zh = draw.pick(OPINIONS)
        return statement(f"{study.en} is {word}", study.zh + zh)
    act = activity_action(draw.pick(lex.HOBBIES))
    place = place_of(draw, act, 0.5)
    word, zh = draw.pick(OPINIONS[:3])
    return statement(join(act.en(act.verb.gerund), place.en, "is", word), place.zh + act.zh + zh)


OPINIONS = (
    ("fun", "真好玩"), ("fun", "真好玩"), ("boring", "很无聊"), ("hard", "很难"), ("interesting", "很有趣"),
    ("important", "很重要"),
    ("useful", "很有用"),
)  # fmt: skip


def hard_work(draw: Draw) -> Phrase:
    """她学习非常努力。 - She studies very hard. 你应该努力工作。 - You should work hard."""
    verb, zh = draw.pick(((lex.STUDY, "学习"), (lex.WORK, "工作")))
    who = someone(draw)
    kind = draw.below(4)
    if kind == 0:
        when = draw.pick(lex.RECENT_TIMES)
        return statement(f"{who.en} {verb.past} hard {when.en}", f"{who.zh}{when.zh}努力{zh}了")
    if kind == 1:
        modal_en, modal_zh = draw.pick((("should", "应该"), ("must", "必须"), ("will", "会")))
        return statement(f"{who.en} {modal_en} {verb.base} hard", f"{who.zh}{modal_zh}努力{zh}")
    if kind == 2:
        return statement(f"{who.en} {who.present(verb)} very hard", f"{who.zh}{zh}非常努力")
    return statement(f"{who.en} often {who.present(verb)} hard", f"{who.zh}经常努力{zh}")


# Constructions: words whose translation depends on the context


def wearing(draw: Draw) -> Phrase:
    """她戴着一顶红色的帽子。 - She is wearing a red hat. 汤姆戴着手套吗？ - Is Tom wearing gloves?"""
    zh, clothes = draw.pick((("穿", lex.CLOTHES), ("戴", lex.WORN_ON_HEAD_OR_HAND)))
    noun = draw.pick(clothes)
    adjective = adjective_for(draw, noun, 0.5)
    while (who := third_person(draw)).agreement is Agreement.PLURAL and who != YOU:
        pass
    while noun in lex.WOMENS_CLOTHES and who.own_zh == "他":
        who = name_subject(draw)
    kind = draw.below(4)
    if kind >= 2:
        thing = indefinite(noun, adjective)
    else:
        thing = in_scope(noun, False, adjective) if noun.kind is Kind.COUNT else bare(noun, adjective)
    combos = (Combo(Role.VERB, "wear", noun.en), *thing.combos)
    if kind == 0:
        return question(f"{BE[who.agreement]} {who.en} wearing {thing.en}", f"{who.zh}{zh}着{thing.zh}吗", combos)
    if kind == 1:
        return statement(f"{who.en} {BE_NOT[who.agreement]} wearing {thing.en}", f"{who.zh}没{zh}{thing.zh}", combos)
    return statement(f"{who.en} {BE[who.agreement]} wearing {thing.en}", f"{who.zh}{zh}着{thing.zh}", combos)


def missing(draw: Draw) -> Phrase:
    """他今天早上错过了火车。 - He missed the train this morning."""
    who, noun = someone(draw), draw.pick(lex.nouns("bus train plane ship"))
    if draw.chance(0.3):
        return statement(f"{who.en} will miss the {noun.en}", f"{who.zh}会错过{noun.zh}")
    when = draw.pick(lex.RECENT_TIMES)
    return statement(f"{who.en} missed the {noun.en} {when.en}", f"{who.zh}{when.zh}错过了{noun.zh}")


def parking(draw: Draw) -> Phrase:
    """她把她的车停在了银行前面。 - She parked her car in front of the bank."""
    landmark = draw.pick(LANDMARKS)
    relation, zh = draw.pick(RELATIONS)
    spot = Place(f"{relation} the {landmark.en}", landmark.zh + zh)
    noun = draw.pick(lex.nouns("car truck bicycle motorcycle"))
    kind = draw.below(4)
    if kind == 0:
        return statement(f"please park the {noun.en} {spot.en}", f"请把{noun.zh}停在{spot.zh}")
    who = someone(draw)
    if kind == 1:
        modal_en, modal_zh = draw.pick(MODALS)
        return statement(f"{who.en} {modal_en} park {spot.en}", f"{who.zh}{modal_zh}在{spot.zh}停车")
    thing = possessed(noun, who.own_en, who.own_zh) if kind == 2 else topic(noun)
    return statement(f"{who.en} parked {thing.en} {spot.en}", f"{who.zh}把{thing.zh}停在了{spot.zh}")


def river_bank(draw: Draw) -> Phrase:
    """他们正在河岸上休息。 - They are resting on the bank of the river."""
    who = someone(draw)
    act = activity_action(draw.pick(BANK_ACTIVITIES))
    water, zh = draw.pick((("river", "河"), ("lake", "湖")))
    bank = Place(f"on the bank of the {water}", f"在{zh}岸上")
    kind = draw.below(3)
    if kind == 0:
        return statement(
            join(who.en, BE[who.agreement], act.en(act.verb.gerund), bank.en), f"{who.zh}正{bank.zh}{act.zh}"
        )
    if kind == 1:
        when = draw.pick(lex.SOON)
        return statement(
            join(who.en, "will", act.en(act.verb.base), bank.en, when.en), f"{who.zh}{when.zh}会{bank.zh}{act.zh}"
        )
    when = draw.pick(lex.RECENT_TIMES)
    return statement(join(who.en, act.en(act.verb.past), bank.en, when.en), f"{who.zh}{when.zh}{bank.zh}{act.zh_done}")


BANK_ACTIVITIES = tuple(
    activity
    for activity in lex.ACTIVITIES
    if activity.verb in (lex.REST, lex.SLEEP, lex.RUN, lex.DANCE, lex.FLY)
    or activity.en_object in ("a walk", "the guitar", "cards", "music", "chess", "badminton")
)


def with_tool(draw: Draw) -> Phrase:
    """男孩昨天用球棒打了球。 - The boy hit the ball with a bat yesterday."""
    past, thing, tool, zh, thing_zh = draw.pick(TOOL_USES)
    combos = (Combo(Role.VERB, past.split()[0], thing.split()[-1]),)
    tool_zh = lex.NOUNS[tool].zh
    if draw.chance(0.2):
        return question(f"who {past} {thing} with a {tool}", f"谁用{tool_zh}{zh}了{thing_zh}", combos)
    who, when = someone(draw), draw.pick(lex.RECENT_TIMES)
    return statement(
        f"{who.en} {past} {thing} with a {tool} {when.en}", f"{who.zh}{when.zh}用{tool_zh}{zh}了{thing_zh}", combos
    )


TOOL_USES = (
    ("hit", "the ball", "bat", "打", "球"), ("cut", "the rope", "knife", "割断", "绳子"),
    ("cut", "the tree", "saw", "锯倒", "树"),
    ("broke", "the stone", "hammer", "打碎", "石头"), ("tied", "the box", "rope", "捆好", "盒子"),
    ("broke", "the window", "bat", "打碎", "窗户"),
)  # fmt: skip


def letters(draw: Draw) -> Phrase:
    """这个词有五个字母。 - This word has five letters. 你的名字有几个字母？ - How many letters does your name have?"""
    if draw.chance(0.4):
        owner = named_owner(draw)
        return question(f"how many letters does {whose(owner)} name have", f"{owner.zh}的名字有几个字母")
    thing = draw.pick(
        (
            Phrase("this word", "这个词"),
            Phrase("that word", "那个词"),
            Phrase("your name", "你的名字"),
            Phrase("his name", "他的名字"),
            Phrase("her name", "她的名字"),
            Phrase("my name", "我的名字"),
        )
    )
    count = numbered(lex.ALPHABET_LETTER, draw.pick(lex.NUMBERS))
    return statement(f"{thing.en} has {count.en}", f"{thing.zh}有{count.zh}")


def directions(draw: Draw) -> Phrase:
    """请在银行左转。 - Please turn left at the bank. 你说得对。 - You are right."""
    landmark = draw.pick(LANDMARKS)
    side, side_zh = draw.pick(SIDES)
    kind = draw.below(5)
    if kind == 0:
        return statement(f"please turn {side} at the {landmark.en}", f"请在{landmark.zh}{side_zh}转")
    if kind == 1:
        return statement(f"the {landmark.en} is on the {side}", f"{landmark.zh}在{side_zh}边")
    if kind == 2:
        who, when = someone(draw), draw.pick(MODALS)
        return statement(
            f"{who.en} {when[0]} turn {side} at the {landmark.en}", f"{who.zh}{when[1]}在{landmark.zh}{side_zh}转"
        )
    who = third_person(draw)
    if kind == 3:
        return statement(f"{who.en} {BE[who.agreement]} right", f"{who.zh}说得对")
    thinker = someone(draw)
    return statement(
        f"{thinker.en} {thinker.present(lex.THINK)} {who.en} {BE[who.agreement]} right",
        f"{thinker.zh}觉得{who.zh}说得对",
    )


def leaving(draw: Draw) -> Phrase:
    """她两天前离开了北京。 - She left Beijing two days ago."""
    who = someone(draw)
    place = draw.pick((*lex.CITY_NAMES, *(Place("the " + noun.en, noun.zh) for noun in LANDMARKS)))
    if draw.chance(0.3):
        when = draw.pick(lex.SOON + lex.FUTURE_YEARS)
        return statement(f"{who.en} will leave {place.en} {when.en}", f"{who.zh}{when.zh}会离开{place.zh}")
    when = draw.pick(lex.RECENT_TIMES + lex.PAST_YEARS)
    return statement(f"{who.en} left {place.en} {when.en}", f"{who.zh}{when.zh}离开了{place.zh}")


def free(draw: Draw) -> Phrase:
    """我明天有空。 - I am free tomorrow. 这张地图是免费的。 - This map is free."""
    kind = draw.below(4)
    if kind == 0:
        noun = draw.pick(lex.nouns("map ticket postcard book newspaper magazine program"))
        thing = demonstrative(noun, draw.chance(0.5), adjective_for(draw, noun, 0.4))
        return statement(f"{thing.en} is free", f"{thing.zh}是免费的", thing.combos)
    when = draw.pick((*lex.SOON, *lex.WEEKDAYS, Time("today", "今天"), Time("now", "现在")))
    if kind == 1:
        who = third_person(draw)
        return question(f"{BE[who.agreement]} {who.en} free {when.en}", f"{who.zh}{when.zh}有空吗")
    who = someone(draw)
    if kind == 2:
        return statement(f"{who.en} {BE_NOT[who.agreement]} free {when.en}", f"{who.zh}{when.zh}没空")
    return statement(f"{who.en} {BE[who.agreement]} free {when.en}", f"{who.zh}{when.zh}有空")


def resemblance(draw: Draw) -> Phrase:
    """汤姆长得像他爸爸。 - Tom looks like his father."""
    who = draw.pick((I, YOU, HE, SHE, name_subject(draw), name_subject(draw), family_subject(draw)))
    whom = other_person(draw, who)
    if draw.chance(0.3):
        return statement(f"{who.en} {DO_NOT[who.agreement]} look like {whom.en}", f"{who.zh}长得不像{whom.zh}")
    return statement(f"{who.en} {who.present(lex.LOOK)} like {whom.en}", f"{who.zh}长得像{whom.zh}")


def kinds(draw: Draw) -> Phrase:
    """我喜欢这种茶。 - I like this kind of tea. 你喜欢什么样的书？ - What kind of books do you like?"""
    noun = draw.pick(
        lex.nouns("tea coffee juice cake bread chocolate flower tree dog cat fish book movie magazine novel")
    )
    kind = draw.below(3)
    if kind == 0:
        who = third_person(draw)
        en = f"what kind of {noun.plural} {DO[who.agreement]} {who.en} like"
        return question(en, f"{who.zh}喜欢什么样的{noun.zh}", (Combo(Role.VERB, "like", noun.en),))
    who = regular(draw)
    verb, zh = draw.pick(ATTITUDES)
    combos = (Combo(Role.VERB, verb.base, noun.en),)
    if kind == 1:
        en = f"{who.en} {DO_NOT[who.agreement]} {verb.base} this kind of {noun.en}"
        return statement(en, f"{who.zh}不{zh}这种{noun.zh}", combos)
    return statement(f"{who.en} {who.present(verb)} this kind of {noun.en}", f"{who.zh}{zh}这种{noun.zh}", combos)


def living(draw: Draw) -> Phrase:
    """我的朋友住在一个小村子里。 - My friend lives in a small village."""
    who = someone(draw)
    if draw.chance(0.3):
        city = draw.pick(lex.CITY_NAMES)
        return statement(f"{who.en} {who.present(lex.LIVE)} in {city.en}", f"{who.zh}住在{city.zh}")
    noun = draw.pick(lex.nouns("village house city"))
    thing = indefinite(noun, adjective_for(draw, noun, 0.7))
    if draw.chance(0.4):
        when = draw.pick(lex.PAST_YEARS[2:])
        return statement(f"{who.en} lived in {thing.en} {when.en}", f"{who.zh}{when.zh}住在{thing.zh}里", thing.combos)
    return statement(f"{who.en} {who.present(lex.LIVE)} in {thing.en}", f"{who.zh}住在{thing.zh}里", thing.combos)


def sitting(draw: Draw) -> Phrase:
    """他站在门后面。 - He is standing behind the door."""
    verb, zh, spots = draw.pick(POSTURES)
    spot = draw.pick(spots)
    if draw.chance(0.2):
        return question(f"who is {verb} {spot.en}", f"谁{zh}在{spot.zh}")
    who = someone(draw)
    return statement(f"{who.en} {BE[who.agreement]} {verb} {spot.en}", f"{who.zh}{zh}在{spot.zh}")


BY_THE_WINDOW = Place("next to the window", "窗户旁边")
ON_THE_SOFA = Place("on the sofa", "沙发上")
POSTURES = (
    ("sitting", "坐", (ON_THE_SOFA, BY_THE_WINDOW, Place("under the tree", "树下面"))),
    ("standing", "站", (BY_THE_WINDOW, Place("behind the door", "门后面"), Place("on the bridge", "桥上"))),
    ("lying", "躺", (ON_THE_SOFA, Place("on the bed", "床上"), Place("on the beach", "海滩上"))),
)


def thinking(draw: Draw) -> Phrase:
    """我觉得这本书非常有趣。 - I think this book is very interesting."""
    who = someone(draw)
    if draw.chance(0.5):
        adjective = draw.pick(lex.ADJECTIVES)
        noun = draw.pick(adjective.nouns)
        verb, zh = draw.pick(((lex.THINK, "觉得"), (lex.KNOW, "知道")))
        thing = demonstrative(noun, True)
        very_en, very_zh = draw.pick((("", "很"), ("very", "非常")))
        en = join(who.en, who.present(verb), thing.en, "is", very_en, adjective.en)
        return statement(en, f"{who.zh}{zh}{thing.zh}{very_zh}{adjective.bare}", describes(adjective, noun))
    others = (*PRONOUN_SUBJECTS, name_subject(draw), name_subject(draw), name_subject(draw))
    other = draw.pick([other for other in others if other.en not in who.en])
    clause = future_clause(draw, other, timed=draw.chance(0.5))
    verb, zh = draw.pick(((lex.THINK, "觉得"), (lex.HOPE, "希望"), (lex.KNOW, "知道")))
    return statement(f"{who.en} {who.present(verb)} {clause.en}", f"{who.zh}{zh}{clause.zh}", clause.combos)


# Constructions: compound sentences


WEARY = (("tired", "很累"), ("busy", "很忙"), ("sick", "病了"), ("sleepy", "很困"))


def because_weary(draw: Draw) -> Phrase:
    """因为安娜病了，所以她不能工作。 - Anna can't work because she is sick."""
    who = simple_subject(draw)
    pronoun = again(who)
    reason, reason_zh = draw.pick(WEARY)
    act = effort(draw, Style.SCOPE, who)
    be = BE[who.agreement]
    do_not = DO_NOT[who.agreement]
    auxiliary, zh = draw.pick((("can't", "不能"), ("won't", "不会"), (f"{do_not} want to", "不想"), ("didn't", "没")))
    if auxiliary == "didn't":
        be = WAS[who.agreement]
    en = join(who.en, auxiliary, act.en(act.verb.base), "because", pronoun.en, be, reason)
    return statement(en, f"因为{who.zh}{reason_zh}，所以{pronoun.zh}{zh}{act.zh}", act.combos)


def because_rain(draw: Draw) -> Phrase:
    """因为昨天下雨了，所以我们没打网球。 - We didn't play tennis yesterday because it rained."""
    fall, falling, zh = draw.pick(FALLING)
    who = someone(draw)
    act = activity_action(draw.pick(OUTDOORS))
    base = act.en(act.verb.base)
    kind = draw.below(3)
    if kind == 0:
        when = draw.pick(lex.RECENT_TIMES)
        en = f"{who.en} didn't {base} {when.en} because it {fall}ed"
        return statement(en, f"因为{when.zh}{zh}了，所以{who.zh}没{act.zh}")
    if kind == 1:
        return statement(f"it is {falling}, so {who.en} can't {base}", f"正在{zh}，所以{who.zh}不能{act.zh}")
    when = draw.pick(lex.SOON[:7])
    return statement(f"if it {fall}s {when.en}, {who.en} won't {base}", f"如果{when.zh}{zh}，{who.zh}就不会{act.zh}")


OUTDOORS = tuple(
    activity
    for activity in lex.ACTIVITIES
    if activity.verb in (lex.SWIM, lex.RUN, lex.FLY, lex.WATER)
    or activity.en_object in ("a walk", "basketball", "tennis", "volleyball", "badminton", "soccer")
)


def because_quality(draw: Draw) -> Phrase:
    """因为这件衬衫非常便宜，所以我买了它。 - I bought this shirt because it was very cheap."""
    frame = draw.pick(BUYING_FRAMES)
    who = someone(draw)
    verb, zh = frame.verb, frame.zh
    bought = draw.chance(0.6)
    noun, adjective = draw.pick(REASONS[frame, bought])
    thing = demonstrative(noun, True)
    combos = (Combo(Role.VERB, verb.base, noun.en), *describes(adjective, noun))
    if bought:
        en = f"{who.en} {verb.past} {thing.en} because it was very {adjective.en}"
        return statement(en, f"因为{thing.zh}非常{adjective.bare}，所以{who.zh}{zh}了它", combos)
    en = f"{who.en} didn't {verb.base} {thing.en} because it was too {adjective.en}"
    return statement(en, f"因为{thing.zh}太{adjective.bare}了，所以{who.zh}没{zh}它", combos)


BUYING_FRAMES = tuple(frame for frame in lex.FRAMES if frame.verb in (lex.BUY, lex.BORROW) and Det.THE in frame.dets)


def reasons(frame: Frame, names: str) -> list[tuple[Noun, Adjective]]:
    """List the objects of a frame, each with every adjective of a list that fits it."""
    return [
        (noun, adjective)
        for noun in frame.objects
        for adjective in lex.ADJECTIVES_OF[noun]
        if noun.kind is Kind.COUNT and adjective.bare and adjective.en in names.split()
    ]


# Why one buys a thing (True), and why one does not (False).
REASONS = {
    (frame, bought): reasons(frame, names)
    for frame in BUYING_FRAMES
    for bought, names in (
        (True, "cheap beautiful useful good interesting comfortable light warm famous long sharp"),
        (False, "expensive heavy old big small dirty boring hard short long light easy"),
    )
}


def because_event(draw: Draw) -> Phrase:
    """因为玛丽弄丢了她的钥匙，所以她很难过。 - Mary is sad because she lost her key."""
    who = simple_subject(draw)
    pronoun = again(who)
    verbs, feelings = draw.pick(CAUSES)
    frame = draw.pick([frame for frame in lex.FRAMES if frame.verb in verbs and Use.PAST in frame.uses])
    act = frame_action(draw, frame, Style.NEW, who)
    feeling, zh = draw.pick(feelings)
    en = f"{who.en} {BE[who.agreement]} {feeling} because {pronoun.en} {act.en(act.verb.past)}"
    return statement(en, f"因为{who.zh}{act.zh_done}，所以{pronoun.zh}很{zh}", act.combos)


CAUSES = (
    ((lex.FIND, lex.RECEIVE), (("happy", "高兴"), ("excited", "激动"))),
    ((lex.LOSE,), (("sad", "难过"), ("angry", "生气"), ("worried", "担心"))),
    ((lex.CARRY, lex.CLEAN, lex.CLIMB, lex.PLANT), (("tired", "累"), ("hungry", "饿"), ("thirsty", "渴"))),
)


def if_free(draw: Draw) -> Phrase:
    """如果安娜明天有时间，她就会看这本书。 - If Anna has time tomorrow, she will read this book."""
    who = simple_subject(draw)
    when = draw.pick((*lex.SOON, *lex.WEEKDAYS))
    have = HAVE[who.agreement]
    condition = draw.pick(
        (
            Phrase(f"{who.en} {have} time {when.en}", f"{who.zh}{when.zh}有时间"),
            Phrase(f"{who.en} {BE[who.agreement]} free {when.en}", f"{who.zh}{when.zh}有空"),
        )
    )
    clause = future_clause(draw, again(who), timed=False)
    return statement(
        f"if {condition.en}, {clause.en}", f"如果{condition.zh}，{clause.subject_zh}就{clause.rest_zh}", clause.combos
    )


def if_rich(draw: Draw) -> Phrase:
    """如果我有足够的钱，我就会买一辆新车。 - If I have enough money, I will buy a new car."""
    who = simple_subject(draw)
    frame = draw.pick(
        [
            frame
            for frame in lex.FRAMES
            if frame.verb in (lex.BUY, lex.BUILD, lex.BOOK) or (frame.zh == "开" and Use.YEARS in frame.uses)
        ]
    )
    act = frame_action(draw, frame, Style.NEW, again(who))
    en = f"if {who.en} {HAVE[who.agreement]} enough money, {again(who).en} will {act.en(act.verb.base)}"
    return statement(en, f"如果{who.zh}有足够的钱，{again(who).zh}就会{act.zh}", act.combos)


def if_weary(draw: Draw) -> Phrase:
    """如果你很累，你就不应该开这辆车。 - You shouldn't drive this car if you are tired."""
    who = simple_subject(draw)
    reason, reason_zh = draw.pick(WEARY)
    modal_en, modal_zh = draw.pick((("shouldn't", "不应该"), ("can't", "不能")))
    act = effort(draw, Style.SCOPE, who)
    en = join(who.en, modal_en, act.en(act.verb.base), "if", again(who).en, BE[who.agreement], reason)
    return statement(en, f"如果{who.zh}{reason_zh}，{again(who).zh}就{modal_zh}{act.zh}", act.combos)


def but_wish(draw: Draw) -> Phrase:
    """汤姆想买一辆车，但是他没有钱。 - Tom wants to buy a car, but he doesn't have any money."""
    who = simple_subject(draw)
    pronoun = again(who)
    clause = wish_clause(draw, who, timed=False)
    excuse = draw.pick(
        (
            Phrase(f"{DO_NOT[who.agreement]} have any time", "没有时间"),
            Phrase(f"{BE[who.agreement]} too busy", "太忙了"),
            Phrase(f"{BE[who.agreement]} too tired", "太累了"),
        )
    )
    return statement(
        f"{clause.en}, but {pronoun.en} {excuse.en}", f"{clause.zh}，但是{pronoun.zh}{excuse.zh}", clause.combos
    )


def but_skill(draw: Draw) -> Phrase:
    """安娜会游泳，但是她不会开车。 - Anna can swim, but she can't drive."""
    who = simple_subject(draw)
    first = draw.pick(lex.SKILLS)
    second = draw.pick_other(lex.SKILLS, first)
    able, unable = activity_action(first), activity_action(second)
    en = f"{who.en} can {able.en(able.verb.base)}, but {again(who).en} can't {unable.en(unable.verb.base)}"
    return statement(en, f"{who.zh}会{able.zh}，但是{again(who).zh}不会{unable.zh}")


def but_liking(draw: Draw) -> Phrase:
    """我喜欢猫，但是汤姆不喜欢狗。 - I like cats, but Tom doesn't like dogs."""
    who = simple_subject(draw)
    other = draw.pick([again(who), *(other for other in (I, YOU, WE, name_subject(draw)) if other.zh not in who.zh)])
    group = draw.pick(RIVALS)
    liked = draw.pick(group)
    disliked = draw.pick_other(group, liked)
    en = f"{who.en} {who.present(lex.LIKE)} {liked.en}, but {other.en} {DO_NOT[other.agreement]} like {disliked.en}"
    return statement(en, f"{who.zh}喜欢{liked.zh}，但是{other.zh}不喜欢{disliked.zh}", liked.combos + disliked.combos)


def likes(noun: Noun) -> Phrase:
    """Build what one likes: "cats" - 猫."""
    phrase = bare(noun)
    return Phrase(phrase.en, phrase.zh, (Combo(Role.VERB, "like", noun.en),))


# Things of one sort, of which one may like some and not others.
RIVALS = (
    tuple(likes(noun) for noun in lex.ANIMALS[:11]),
    tuple(likes(noun) for noun in lex.FRUIT + lex.VEGETABLES),
    tuple(likes(noun) for noun in lex.LIKED_DRINKS),
    tuple(Phrase(act.en(act.verb.gerund), act.zh) for act in map(activity_action, lex.HOBBIES)),
)


def but_quality(draw: Draw) -> Phrase:
    """这辆车很贵，但是那辆车很便宜。 - This car is expensive, but that car is cheap."""
    first, second, noun = draw.pick(OPPOSITES)
    this, that = demonstrative(noun, True), demonstrative(noun, False)
    combos = (*describes(first, noun), *describes(second, noun))
    en = f"{this.en} is {first.en}, but {that.en} is {second.en}"
    return statement(en, f"{this.zh}很{first.bare}，但是{that.zh}很{second.bare}", combos)


OPPOSITES = [
    (first, second, noun)
    for first in lex.ADJECTIVES
    for second in lex.ADJECTIVES
    for noun in first.nouns
    if noun in second.nouns and {first.en, second.en} in lex.OPPOSITES
]


def past_and(draw: Draw) -> Phrase:
    """汤姆买了一件衬衫，安娜买了一条裙子。 - Tom bought a shirt, and Anna bought a skirt."""
    first = draw.pick((*PRONOUN_SUBJECTS, name_subject(draw), name_subject(draw), name_subject(draw)))
    second = draw.pick(
        [name for name in (HE, SHE, THEY, name_subject(draw), name_subject(draw)) if name.en != first.en]
    )
    frame = draw.weighted(CONTRASTS)
    noun = draw.pick(frame.objects)
    other = draw.pick_other(frame.objects, noun)
    one = object_phrase(draw, noun, frame.dets, Style.NEW, first)
    two = object_phrase(draw, other, frame.dets, Style.NEW, second)
    past, base = frame.verb.past, frame.verb.base
    combos = (Combo(Role.VERB, base, noun.en), Combo(Role.VERB, base, other.en), *one.combos, *two.combos)
    en = f"{first.en} {past} {one.en}, and {second.en} {past} {two.en}"
    return statement(en, f"{first.zh}{frame.zh}了{one.zh}，{second.zh}{frame.zh}了{two.zh}", combos)


CONTRASTS = [
    (weight, frame)
    for weight, frame in FRAMES[Use.PAST]
    if len(frame.objects) > 2 and frame.verb.past != frame.verb.base and frame.verb is not lex.WEAR
]


def when_event(draw: Draw) -> Phrase:
    """汤姆给我打电话的时候，我正在看一本书。 - I was reading a book when Tom called me."""
    who = draw.pick((*PRONOUN_SUBJECTS, family_subject(draw), family_subject(draw), person_subject(draw)))
    name = name_subject(draw)
    clause = progressive_clause(draw, who)
    past = clause.en.replace(f"{who.en} {BE[who.agreement]} ", f"{who.en} {WAS[who.agreement]} ", 1)
    event_en, event_zh = draw.pick((("came home", "回家"), ("arrived", "到"), ("left", "离开"), ("called", "打电话来")))
    en = f"{past} when {name.en} {event_en}"
    return statement(en, f"{name.zh}{event_zh}的时候，{clause.zh}", clause.combos)


def when_habit(draw: Draw) -> Phrase:
    """安娜有空的时候，她经常看书。 - Anna often reads books when she is free."""
    who = simple_subject(draw)
    pronoun = again(who)
    condition = draw.pick(
        (
            Phrase(f"{pronoun.en} {BE[who.agreement]} free", "有空"),
            Phrase(f"{pronoun.en} {HAVE[who.agreement]} time", "有时间"),
        )
    )
    act = action(draw, Use.HABIT, Style.GENERIC, who) if draw.chance(0.5) else activity_action(draw.pick(lex.HOBBIES))
    often, often_zh = draw.pick((("often", "经常"), ("usually", "通常"), ("always", "总是")))
    en = join(who.en, often, act.en(who.present(act.verb)), "when", condition.en)
    return statement(en, f"{who.zh}{condition.zh}的时候，{pronoun.zh}{often_zh}{act.zh}", act.combos)


def when_rain(draw: Draw) -> Phrase:
    """下雨的时候，她在家下棋。 - When it rains, she plays chess at home."""
    who = regular(draw)
    fall, _, zh = draw.pick(FALLING)
    activity = draw.pick([activity for activity in lex.HOBBIES if lex.PLACES["home"] in activity.places])
    act = activity_action(activity)
    en = f"when it {fall}s, {who.en} {act.en(who.present(act.verb))} at home"
    return statement(en, f"{zh}的时候，{who.zh}在家{act.zh}", act.combos)


# Fragments


def fragment(draw: Draw) -> Phrase:
    """Build a phrase that is no sentence: "a red book" - 一本红色的书, "the book that I bought" - 我买的书."""
    noun = draw.pick(CLEAR_NOUNS)
    adjective = adjective_for(draw, noun, 0.6)
    kind = draw.below(6)
    if kind == 0 and noun in PLURAL_NOUNS:
        return numbered(noun, few(draw), adjective)
    if kind == 1:
        return demonstrative(noun, draw.chance(0.5), adjective)
    if kind == 2 and noun in PLURAL_NOUNS and noun.kind is Kind.COUNT:
        number = draw.pick(lex.NUMBERS[:5]) if draw.chance(0.6) else None
        return demonstrative_plural(noun, draw.chance(0.5), number, adjective)
    if kind == 3 and noun in OWNED_NOUNS:
        owner = named_owner(draw)
        return possessed(noun, whose(owner), owner.zh, adjective)
    if kind == 4:
        return bought_thing(draw)[1]
    return indefinite(noun, adjective)


# Nouns whose plural is met with elsewhere in the corpus too.
PLURAL_NOUNS = frozenset(noun for frame in lex.FRAMES if Det.NUMBER in frame.dets for noun in frame.objects)


# The constructions, each with its share of the corpus.
CONSTRUCTIONS: tuple[tuple[float, Callable[[Draw], Phrase]], ...] = (
    (7, past), (3, past_without_time), (2, past_time_first), (3, past_negative), (3, past_question), (4.5, going),
    (1.5, going_negative), (2, going_question), (4, future), (1.5, future_negative), (1.5, future_question),
    (5, habit), (1.5, habit_negative), (1.5, habit_question), (1.2, ability), (3, modal), (1, modal_question),
    (1, permission), (2.5, wish), (1.2, wish_negative), (1.2, wish_question), (4, experience), (1.1, been_to),
    (3.5, imperative), (2, who_question), (1.7, what_question), (1.5, where_question), (1.2, when_question),
    (1.5, why_question), (0.8, which_question), (0.8, how_many_question), (0.5, color_question),
    (0.6, price_question), (0.6, whose_question), (2, identity), (1.2, profession), (4, quality), (2, color),
    (5.5, comparison), (1, person_comparison), (1.2, state), (0.6, age), (2, having), (1.7, family), (2, liking),
    (1.2, liking_question), (2, wanting), (1, understanding), (1.3, feeling_for), (1.2, knowing), (3, existence),
    (2.3, town), (2, location), (1, whereabouts), (1.2, going_somewhere), (1.5, travel), (0.4, flight),
    (1.2, purpose), (1.5, put), (2, giving), (1.5, please_give), (0.6, writing_to), (2, with_person), (1.2, company),
    (1.2, asking), (0.8, teaching), (3, relative_object), (1.5, relative_subject), (1, animal), (0.9, creature),
    (1.3, machine), (0.6, machine_translation), (0.7, training), (0.8, judgement), (0.5, climate), (0.8, seasonal),
    (1.2, weather), (1.9, health), (1.5, daily_routine), (0.8, meal), (0.6, appointment), (0.7, weekday),
    (1.2, manner), (0.8, duration), (1, fun), (0.6, hard_work), (1.8, wearing), (0.4, missing), (0.8, parking),
    (0.6, river_bank), (1.2, with_tool), (0.5, letters), (0.9, directions), (0.6, leaving), (0.6, free),
    (0.5, resemblance), (0.6, kinds), (0.7, living), (0.9, sitting), (1.5, thinking), (1.3, because_weary),
    (0.8, because_rain), (1, because_quality), (1, because_event), (1.2, if_free), (0.6, if_rich), (0.8, if_weary),
    (1, but_wish), (0.6, but_skill), (0.8, but_liking), (0.8, but_quality), (1.5, past_and), (1.2, when_event),
    (1, when_habit), (0.4, when_rain), (5.2, fragment),
)  # fmt: skip
