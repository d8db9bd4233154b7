"""The words of the English-Chinese corpus: typed tables, and the English morphology that they need.

The tables are plain text, `;` between entries and blanks between columns; `_` stands for a blank inside a word.
`make_corpus.py` builds the sentences. A noun has exactly one measure word, and a verb has one Chinese rendering for
each group of objects (a `Frame`): "play the piano" is 弹钢琴, "play basketball" is 打篮球.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from typing import NamedTuple

VOWELS = "aeiou"


class Kind(enum.Enum):
    """How a noun is counted: "two cats", "two pairs of shoes", "two cups of tea"."""

    COUNT = enum.auto()
    PAIR = enum.auto()
    MASS = enum.auto()


class Noun(NamedTuple):
    """A noun of both languages; `unit` is the English measure of a mass noun ("cup" in "a cup of tea")."""

    en: str
    zh: str
    measure: str
    plural: str
    kind: Kind = Kind.COUNT
    unit: str = ""


class Verb(NamedTuple):
    """The five forms of an English verb."""

    base: str
    third: str
    past: str
    participle: str
    gerund: str


class Place(NamedTuple):
    """Where something happens: "in the park" is 在 + 公园里."""

    en: str
    zh: str


class Use(enum.Flag):
    """The constructions that a verb phrase fits into."""

    PAST = enum.auto()
    NOW = enum.auto()
    FUTURE = enum.auto()
    PLAN = enum.auto()
    HABIT = enum.auto()
    EVER = enum.auto()
    ORDER = enum.auto()
    LONG_AGO = enum.auto()
    YEARS = enum.auto()


class Det(enum.Flag):
    """The determiners that the object of a verb can have."""

    A = enum.auto()
    NUMBER = enum.auto()
    THE = enum.auto()
    OWN = enum.auto()


class Frame(NamedTuple):
    """A transitive verb with the objects it selects, its Chinese rendering for them, and places where it happens."""

    verb: Verb
    zh: str
    objects: tuple[Noun, ...]
    dets: Det
    uses: Use
    places: tuple[Place, ...]


class Activity(NamedTuple):
    """A verb phrase without a free object: "play the piano" is 弹 + 钢琴, "swim" is 游泳."""

    verb: Verb
    en_object: str
    zh: str
    zh_object: str
    places: tuple[Place, ...]
    uses: Use


class Adjective(NamedTuple):
    """An adjective before a noun (`before`), as a predicate after 很 (`bare`, empty for colors), and its nouns."""

    en: str
    before: str
    bare: str
    comparative: str
    nouns: tuple[Noun, ...]


class Person(NamedTuple):
    """A name, or a word for a member of the family, with the possessive pronoun that refers back to it."""

    en: str
    zh: str
    own_en: str
    own_zh: str


class Time(NamedTuple):
    """A time phrase: at the end of the English sentence, before the Chinese verb."""

    en: str
    zh: str


def rows(table: str) -> Iterator[list[str]]:
    """Split a table into its entries, and each entry into its columns."""
    for entry in table.split(";"):
        if entry.strip():
            yield [column.replace("_", " ") for column in entry.split()]


def plural_of(singular: str) -> str:
    """Spell the regular plural of a noun, or the regular third person of a verb: "box" -> "boxes"."""
    if singular.endswith(("s", "x", "z", "ch", "sh")):
        return singular + "es"
    if singular.endswith("y") and singular[-2] not in VOWELS:
        return singular[:-1] + "ies"
    return singular + "s"


def past_of(base: str) -> str:
    """Spell the regular past of a verb: "carry" -> "carried"."""
    if base.endswith("e"):
        return base + "d"
    if base.endswith("y") and base[-2] not in VOWELS:
        return base[:-1] + "ied"
    return base + "ed"


def gerund_of(base: str) -> str:
    """Spell the regular gerund of a verb: "write" -> "writing"."""
    return base[:-1] + "ing" if base.endswith("e") and not base.endswith("ee") else base + "ing"


def article(phrase: str) -> str:
    """Put "a" or "an" before a phrase by its first letter; "university" and "useful" begin with a consonant."""
    starts_with_vowel = phrase[0] in VOWELS and not phrase.startswith(("uni", "use"))
    return ("an " if starts_with_vowel else "a ") + phrase


def verb(phrase: str, past: str = "", participle: str = "", gerund: str = "") -> Verb:
    """Inflect the first word of a verb phrase, regularly where no form is given: "turn on" -> "turned on"."""
    head, blank, particle = phrase.partition(" ")
    past = past or past_of(head)
    third = {"have": "has", "do": "does", "go": "goes"}.get(head, plural_of(head))
    forms = (head, third, past, participle or past, gerund or gerund_of(head))
    return Verb(*(form + blank + particle for form in forms))


def count_nouns(table: str, kind: Kind = Kind.COUNT) -> dict[str, Noun]:
    """Read countable nouns: English, Chinese, measure word and, where irregular, the plural."""
    nouns = {}
    for en, zh, measure, *irregular in rows(table):
        plural = irregular[0] if irregular else plural_of(en)
        nouns[en] = Noun(en, zh, measure, en if kind is Kind.PAIR else plural, kind)
    return nouns


def mass_nouns(table: str) -> dict[str, Noun]:
    """Read mass nouns: English, Chinese, measure word and the English unit."""
    return {en: Noun(en, zh, measure, en, Kind.MASS, unit) for en, zh, measure, unit in rows(table)}


NOUNS: dict[str, Noun] = {
    # Animals
    **count_nouns("""
        cat 猫 只; dog 狗 条; horse 马 匹; cow 牛 头; pig 猪 头; bird 鸟 只; rabbit 兔子 只; monkey 猴子 只;
        elephant 大象 头; tiger 老虎 只; panda 熊猫 只; duck 鸭子 只; snake 蛇 条; bear 熊 只; mouse 老鼠 只 mice;
        butterfly 蝴蝶 只; bee 蜜蜂 只; fly 苍蝇 只; fish 鱼 条 fish
    """),
    # People
    **count_nouns("""
        teacher 老师 位; doctor 医生 位; student 学生 名; child 孩子 个 children; boy 男孩 个; girl 女孩 个;
        man 男人 个 men; woman 女人 个 women; driver 司机 位; farmer 农民 位; singer 歌手 位; nurse 护士 位;
        worker 工人 名; engineer 工程师 名; writer 作家 位; scientist 科学家 位; friend 朋友 个; neighbor 邻居 个
    """),
    # Things to read, look at and listen to
    **count_nouns("""
        book 书 本; dictionary 词典 本; magazine 杂志 本; novel 小说 本; newspaper 报纸 份; letter 信 封;
        article 文章 篇; story 故事 个; poem 诗 首; song 歌 首; movie 电影 部; photo 照片 张; map 地图 张;
        postcard 明信片 张; ticket 票 张; painting 画 幅; notebook 笔记本 本; match 比赛 场
    """),
    # Tools and stationery
    **count_nouns("""
        saw 锯子 把; hammer 锤子 把; knife 刀 把 knives; key 钥匙 把; umbrella 雨伞 把; spoon 勺子 把; ruler 尺子 把;
        pen 钢笔 支; pencil 铅笔 支; candle 蜡烛 根; rope 绳子 根; bat 球棒 根; kite 风筝 只
    """),
    # Furniture and parts of a room
    **count_nouns("""
        table 桌子 张; chair 椅子 把; bed 床 张; sofa 沙发 张; lamp 台灯 盏; mirror 镜子 面; door 门 扇;
        window 窗户 扇; light 灯 盏
    """),
    # Machines and vehicles
    **count_nouns("""
        computer 电脑 台; phone 手机 部; camera 照相机 台; radio 收音机 台; TV 电视 台 TVs; robot 机器人 个;
        car 车 辆; bicycle 自行车 辆; motorcycle 摩托车 辆; truck 卡车 辆; bus 公共汽车 辆; taxi 出租车 辆;
        train 火车 列; plane 飞机 架; ship 船 艘; piano 钢琴 架; guitar 吉他 把; violin 小提琴 把
    """),
    # Clothes and what else is worn
    **count_nouns("""
        shirt 衬衫 件; coat 大衣 件; sweater 毛衣 件; jacket 夹克 件; skirt 裙子 条; dress 连衣裙 条;
        scarf 围巾 条 scarves; hat 帽子 顶; watch 手表 块; ring 戒指 枚
    """),
    **count_nouns(
        "pants 裤子 条; shoes 鞋 双; socks 袜子 双; glasses 眼镜 副; gloves 手套 副; scissors 剪刀 把", Kind.PAIR
    ),
    # Food and drink
    **count_nouns("""
        apple 苹果 个; banana 香蕉 根; orange 橙子 个; pear 梨 个; watermelon 西瓜 个; egg 鸡蛋 个;
        tomato 西红柿 个 tomatoes; potato 土豆 个 potatoes; carrot 胡萝卜 根; cake 蛋糕 个; sandwich 三明治 个;
        cookie 饼干 块; can 罐头 个
    """),
    **mass_nouns("""
        rice 米饭 碗 bowl; noodles 面条 碗 bowl; soup 汤 碗 bowl; bread 面包 块 piece; meat 肉 块 piece;
        chocolate 巧克力 块 piece; tea 茶 杯 cup; coffee 咖啡 杯 cup; water 水 杯 glass; milk 牛奶 杯 glass;
        juice 果汁 杯 glass; beer 啤酒 瓶 bottle; paper 纸 张 sheet
    """),
    # Containers and presents
    **count_nouns("""
        cup 杯子 个; bowl 碗 个; plate 盘子 个; bottle 瓶子 个; box 盒子 个; bag 包 个; basket 篮子 个; ball 球 个;
        gift 礼物 份
    """),
    # Buildings, rooms and other places
    **count_nouns("""
        school 学校 所; university 大学 所; hospital 医院 家; bank 银行 家; shop 商店 家; restaurant 饭馆 家;
        hotel 酒店 家; supermarket 超市 家; bookstore 书店 家; factory 工厂 家; library 图书馆 座; museum 博物馆 座;
        house 房子 栋; bridge 桥 座; mountain 山 座; city 城市 座; river 河 条; street 街 条; park 公园 个;
        garden 花园 个; lake 湖 个; village 村子 个; station 车站 个; airport 机场 个; zoo 动物园 个; room 房间 个;
        kitchen 厨房 间; office 办公室 间; classroom 教室 间
    """),
    # Nature
    **count_nouns("tree 树 棵; flower 花 朵; stone 石头 块"),
    # Language, learning and computing
    **count_nouns("""
        question 问题 个; answer 答案 个; word 词 个; sentence 句子 个; name 名字 个; language 语言 种; lesson 课 节;
        meeting 会议 场; exam 考试 场; plan 计划 个; model 模型 个; program 程序 个
    """),
}

# Second senses, kept apart from the table above because the English word is already in it.
ANIMAL_BAT = Noun("bat", "蝙蝠", "只", "bats")
ALPHABET_LETTER = Noun("letter", "字母", "个", "letters")


def nouns(names: str) -> tuple[Noun, ...]:
    """Look up the nouns of a list: `nouns("cat dog")`."""
    return tuple(NOUNS[name] for name in names.split())


PETS = nouns("cat dog bird rabbit fish")
BIG_ANIMALS = nouns("horse cow pig elephant tiger panda bear monkey")
SMALL_ANIMALS = nouns("cat dog bird rabbit duck mouse snake butterfly bee fly")
ANIMALS = BIG_ANIMALS + SMALL_ANIMALS
PEOPLE = nouns(
    "teacher doctor student child boy girl man woman driver farmer singer nurse worker engineer writer scientist"
)
PROFESSIONS = nouns("teacher doctor driver farmer singer nurse worker engineer writer scientist student")
ACQUAINTANCES = nouns("friend neighbor teacher student")
OWN_PRONOUN = {"man": "his", "boy": "his", "woman": "her", "girl": "her"}
CLOTHES = nouns("shirt coat sweater jacket skirt dress pants shoes socks")
WOMENS_CLOTHES = nouns("skirt dress")
WORN_ON_HEAD_OR_HAND = nouns("hat watch ring scarf glasses gloves")
FRUIT = nouns("apple banana orange pear watermelon")
VEGETABLES = nouns("tomato potato carrot")
DRINKS = nouns("tea coffee water milk juice beer")
VEHICLES = nouns("car bicycle motorcycle truck bus taxi")
MACHINES = nouns("computer phone camera radio TV")
FURNITURE = nouns("table chair bed sofa lamp mirror")
TOOLS = nouns("saw hammer knife scissors rope")
STATIONERY = nouns("pen pencil ruler notebook")
DISHES = nouns("cup bowl plate bottle spoon")
BUILDINGS = nouns("school university hospital bank shop restaurant hotel supermarket bookstore library museum")
BOOKS = nouns("book dictionary magazine novel newspaper")

# Nouns that "the" leaves bare even after the verb, because the situation has only one: rooms, buildings, doors, lights.
SITUATIONAL = frozenset(
    BUILDINGS
    + nouns("door window light TV kitchen room classroom office house garden park zoo station airport factory")
    + nouns("answer name")
)


def place_table(table: str) -> dict[str, Place]:
    """Read places under the last word of their English phrase: "in the park" under "park"."""
    return {en.split()[-1]: Place(en, zh) for en, zh in rows(table)}


PLACES = place_table("""
    at_home 家; at_school 学校; in_the_library 图书馆里; in_the_park 公园里; in_the_office 办公室里;
    in_the_kitchen 厨房里; at_the_restaurant 饭馆; in_the_garden 花园里; at_the_station 车站; on_the_bus 公共汽车上;
    on_the_train 火车上; on_the_plane 飞机上; at_the_supermarket 超市; at_the_shop 商店; at_the_bookstore 书店;
    in_the_classroom 教室里; at_the_hospital 医院; at_the_bank 银行; at_the_museum 博物馆; at_the_zoo 动物园;
    at_the_airport 机场; at_the_hotel 酒店; in_the_river 河里; in_the_lake 湖里; on_the_beach 海滩上;
    on_the_street 街上; on_the_internet 网上; in_the_room 房间里; in_the_village 村子里; at_the_factory 工厂;
    at_the_university 大学; in_the_tree 树上; on_the_sofa 沙发上; in_Beijing 北京; in_Shanghai 上海; in_London 伦敦;
    in_Paris 巴黎; in_Tokyo 东京
""")


def places(names: str) -> tuple[Place, ...]:
    """Look up the places of a list: `places("home park")`."""
    return tuple(PLACES[name] for name in names.split())


CITY_NAMES = (
    Place("Beijing", "北京"),
    Place("Shanghai", "上海"),
    Place("London", "伦敦"),
    Place("Paris", "巴黎"),
    Place("Tokyo", "东京"),
)
CITIES = places("Beijing Shanghai London Paris Tokyo")

# Where one can go: "to the park" is 去公园.
GOALS = tuple(
    Place(en, zh)
    for en, zh in rows("""
    to_school 学校; to_the_library 图书馆; to_the_park 公园; to_the_station 车站; to_the_supermarket 超市;
    to_the_bookstore 书店; to_the_hospital 医院; to_the_bank 银行; to_the_museum 博物馆; to_the_zoo 动物园;
    to_the_airport 机场; to_the_office 办公室; to_the_restaurant 饭馆; to_the_factory 工厂; to_the_university 大学;
    to_the_village 村子
""")
)

# Verbs
ANSWER = verb("answer")
ASK = verb("ask")
BOOK = verb("book")
BORROW = verb("borrow")
BRING = verb("bring", "brought")
BUILD = verb("build", "built")
BUY = verb("buy", "bought")
CARRY = verb("carry")
CATCH = verb("catch", "caught")
CLEAN = verb("clean")
CLIMB = verb("climb")
CLOSE = verb("close")
COOK = verb("cook")
CUT = verb("cut", "cut", gerund="cutting")
DANCE = verb("dance")
DO = verb("do", "did", "done")
DRAW = verb("draw", "drew", "drawn")
DRINK = verb("drink", "drank", "drunk")
DRIVE = verb("drive", "drove", "driven")
EAT = verb("eat", "ate", "eaten")
FEED = verb("feed", "fed")
FIND = verb("find", "found")
FLY = verb("fly", "flew", "flown")
GIVE = verb("give", "gave", "given")
GO = verb("go", "went", "gone")
HATE = verb("hate")
HAVE = verb("have", "had")
HELP = verb("help")
INVITE = verb("invite")
KNOW = verb("know", "knew", "known")
LEARN = verb("learn")
LIKE = verb("like")
LISTEN_TO = verb("listen to")
LIVE = verb("live")
HOPE = verb("hope")
LOOK = verb("look")
LOOK_FOR = verb("look for")
LOSE = verb("lose", "lost")
LOVE = verb("love")
MAKE = verb("make", "made")
MEET = verb("meet", "met")
MISS = verb("miss")
NEED = verb("need")
OPEN = verb("open")
PLAN = verb("plan", "planned", gerund="planning")
PLANT = verb("plant")
PLAY = verb("play")
READ = verb("read", "read")
RECEIVE = verb("receive")
REMEMBER = verb("remember")
REPAIR = verb("repair")
REST = verb("rest")
RIDE = verb("ride", "rode", "ridden")
RUN = verb("run", "ran", "run", "running")
SEE = verb("see", "saw", "seen")
SELL = verb("sell", "sold")
SEND = verb("send", "sent")
SING = verb("sing", "sang", "sung")
SLEEP = verb("sleep", "slept")
SPEAK = verb("speak", "spoke", "spoken")
STUDY = verb("study")
SWIM = verb("swim", "swam", "swum", "swimming")
TAKE = verb("take", "took", "taken")
TEACH = verb("teach", "taught")
TEST = verb("test")
THINK = verb("think", "thought")
TRAIN = verb("train")
TRANSLATE = verb("translate")
TURN_OFF = verb("turn off")
TURN_ON = verb("turn on")
UNDERSTAND = verb("understand", "understood")
USE = verb("use")
VISIT = verb("visit")
WAIT_FOR = verb("wait for")
WALK = verb("walk")
WANT = verb("want")
WASH = verb("wash")
WATCH = verb("watch")
WATER = verb("water")
WEAR = verb("wear", "wore", "worn", "wearing")
WORK = verb("work")
WRITE = verb("write", "wrote", "written")

# Use.LONG_AGO: one still speaks of it after years. Use.YEARS: nothing of one day. The others name constructions.
DONE = Use.PAST | Use.FUTURE | Use.PLAN
DEED = DONE | Use.NOW | Use.ORDER
ALL = DEED | Use.HABIT | Use.EVER

ONE = Det.A | Det.THE
ANY = Det.A | Det.NUMBER | Det.THE
NEW = Det.A | Det.NUMBER
MINE = Det.THE | Det.OWN


def frame(head: Verb, zh: str, objects: tuple[Noun, ...], dets: Det, uses: Use, where: str = "") -> Frame:
    """Make a frame, with the places given by name."""
    return Frame(head, zh, objects, dets, uses, places(where))


# fmt: off
FRAMES = (
    # Food and drink
    frame(EAT, "吃", FRUIT, ANY, ALL, "home kitchen office park"),
    frame(EAT, "吃", VEGETABLES, ANY, ALL, "home kitchen restaurant"),
    frame(EAT, "吃", nouns("egg cake sandwich cookie"), ANY, ALL, "home restaurant kitchen office train"),
    frame(EAT, "吃", nouns("rice noodles bread meat chocolate"), ANY, ALL, "home restaurant school"),
    frame(EAT, "喝", nouns("soup"), ANY, ALL, "home restaurant"),
    frame(DRINK, "喝", DRINKS, ANY, ALL, "home restaurant office train plane kitchen"),
    frame(MAKE, "做", nouns("cake sandwich cookie soup noodles"), NEW, DEED, "home kitchen"),
    frame(CUT, "切", nouns("cake watermelon tomato potato carrot"), ANY, DEED, "kitchen"),
    # Shopping
    frame(BUY, "买", FRUIT + VEGETABLES + nouns("egg cookie can bread meat milk juice beer"), NEW, DONE,
          "supermarket"),
    frame(BUY, "买", BOOKS + nouns("map postcard notebook pen pencil"), ANY, DONE | Use.LONG_AGO,
          "bookstore Beijing London"),
    frame(BUY, "买", CLOTHES + WORN_ON_HEAD_OR_HAND, ONE, DONE | Use.LONG_AGO, "shop internet Shanghai Paris"),
    frame(BUY, "买", MACHINES + FURNITURE + nouns("piano guitar car bicycle"), ONE, DONE | Use.LONG_AGO,
          "Shanghai Tokyo internet"),
    frame(BUY, "买", TOOLS + nouns("candle umbrella bag basket bat kite"), ANY, DONE, "shop supermarket internet"),
    frame(SELL, "卖", nouns("car bicycle motorcycle house piano guitar camera"), MINE, DONE | Use.LONG_AGO),
    frame(SELL, "卖", FRUIT + nouns("flower egg"), NEW, Use.HABIT, "supermarket street"),
    frame(BORROW, "借", nouns("book dictionary magazine novel umbrella bicycle camera ruler"), ANY, DONE),
    # Reading, writing, pictures and music
    frame(READ, "看", nouns("book magazine novel newspaper article"), ANY, ALL, "home library train park bus"),
    frame(READ, "看", nouns("letter"), MINE, DEED, "home office room"),
    frame(READ, "读", nouns("poem sentence word"), ANY, DEED, "classroom school"),
    frame(WRITE, "写", nouns("letter postcard"), NEW, ALL, "home hotel plane"),
    frame(WRITE, "写", nouns("article novel story poem"), NEW, ALL | Use.LONG_AGO, "home library room"),
    frame(WRITE, "写", nouns("program"), NEW, ALL | Use.LONG_AGO, "office home"),
    frame(WATCH, "看", nouns("movie match"), ANY, ALL, "home room hotel"),
    frame(LISTEN_TO, "听", nouns("song story"), ANY, ALL, "home room garden"),
    frame(SING, "唱", nouns("song"), ANY, ALL, "school home park"),
    frame(DRAW, "画", nouns("cat dog horse bird butterfly tree flower house bridge mountain"), NEW, ALL,
          "classroom home"),
    frame(TAKE, "拍", nouns("photo"), NEW, ALL, "park zoo museum beach street"),
    # Seeing, finding and losing
    frame(SEE, "看见", nouns("tiger elephant panda bear monkey snake"), ANY, Use.PAST | Use.LONG_AGO, "zoo"),
    frame(SEE, "看见", nouns("dog cat rabbit duck bird butterfly bee horse"), ANY, Use.PAST, "park garden village"),
    frame(SEE, "看见", PEOPLE, ANY, Use.PAST, "street station park"),
    frame(SEE, "看见", VEHICLES, ONE, Use.PAST, "street"),
    frame(SEE, "看见", TOOLS + nouns("key umbrella mouse candle fly"), ANY, Use.PAST, "kitchen room"),
    frame(MEET, "遇见", PEOPLE, ANY, Use.PAST | Use.LONG_AGO, "street station library airport"),
    frame(MEET, "遇见", nouns("friend neighbor"), NEW, Use.PAST, "park supermarket museum"),
    frame(FIND, "找到", nouns("key phone ring ticket pen umbrella"), Det.A | MINE, Use.PAST, "room office station"),
    frame(FIND, "找到", nouns("shoes glasses gloves hat scarf notebook ball cat dog"), MINE, Use.PAST, "room garden"),
    frame(LOOK_FOR, "找", nouns("key phone ticket glasses gloves notebook cat dog bag"), MINE, Use.NOW,
          "room garden"),
    frame(LOSE, "弄丢", nouns("key phone ticket umbrella glasses gloves bag watch ring hat"), Det.OWN,
          Use.PAST | Use.LONG_AGO, "station airport park hotel"),
    # Housework and tools
    frame(CLEAN, "打扫", nouns("room kitchen classroom office house"), Det.THE, DEED | Use.HABIT),
    frame(WASH, "洗", CLOTHES + nouns("scarf gloves hat car bicycle"), MINE, DEED),
    frame(WASH, "洗", nouns("cup bowl plate spoon apple pear tomato"), ANY, DEED, "kitchen"),
    frame(REPAIR, "修", VEHICLES[:4] + MACHINES + nouns("chair table watch umbrella shoes robot"), ONE | MINE, DEED),
    frame(USE, "用", nouns("computer phone camera dictionary knife hammer saw scissors ruler pen"), MINE,
          Use.NOW | Use.FUTURE | Use.ORDER),
    frame(CARRY, "搬", nouns("box table chair stone"), ANY, DEED),
    frame(BRING, "带", nouns("gift camera cake guitar ball dictionary ruler pencil"), ANY, DONE | Use.ORDER),
    frame(TAKE, "带", nouns("umbrella coat map scarf"), ONE, Use.FUTURE | Use.ORDER),
    # Opening and closing
    frame(OPEN, "打开", nouns("door window box bag bottle can"), ONE, DONE | Use.ORDER),
    frame(OPEN, "开", nouns("shop restaurant hotel bookstore supermarket"), Det.A, Use.PAST | Use.PLAN | Use.YEARS,
          "Beijing Shanghai London Paris"),
    frame(CLOSE, "关上", nouns("door window box"), Det.THE, DONE | Use.ORDER),
    frame(TURN_ON, "打开", nouns("light computer TV radio lamp"), Det.THE, DONE | Use.ORDER),
    frame(TURN_OFF, "关掉", nouns("light computer TV radio lamp phone"), Det.THE, DONE | Use.ORDER),
    # Clothes
    frame(WEAR, "穿", CLOTHES, ONE, DONE | Use.HABIT | Use.ORDER),
    frame(WEAR, "戴", WORN_ON_HEAD_OR_HAND, ONE, DONE | Use.HABIT | Use.ORDER),
    # Moving
    frame(RIDE, "骑", nouns("bicycle horse motorcycle"), ONE, ALL, "park village"),
    frame(DRIVE, "开", nouns("car truck bus taxi"), ONE, ALL),
    frame(CLIMB, "爬", nouns("mountain tree"), ONE, ALL | Use.LONG_AGO),
    # Plants, animals and building
    frame(PLANT, "种", nouns("tree"), NEW, ALL | Use.LONG_AGO, "garden park village school"),
    frame(PLANT, "种", nouns("tomato potato carrot flower"), NEW, Use.HABIT, "garden village"),
    frame(CATCH, "抓到", nouns("fish"), NEW, Use.PAST, "river lake"),
    frame(CATCH, "抓到", nouns("butterfly mouse rabbit snake"), NEW, Use.PAST, "garden village"),
    frame(FEED, "喂", nouns("cat dog horse bird rabbit pig cow duck fish"), MINE, DEED | Use.HABIT),
    frame(BUILD, "建", nouns("house bridge school hospital factory library"), Det.A, Use.PAST | Use.YEARS,
          "village Beijing London"),
    # Learning and computing
    frame(ASK, "问", nouns("question"), NEW, DONE | Use.HABIT, "classroom"),
    frame(ANSWER, "回答", nouns("question"), ANY, DEED, "classroom"),
    frame(LEARN, "学", nouns("word sentence song poem language"), NEW, DONE | Use.LONG_AGO, "school home university"),
    frame(TRANSLATE, "翻译", nouns("sentence article letter novel poem word book story"), ANY, DEED,
          "office library home"),
    frame(TRAIN, "训练", nouns("model robot dog"), ANY, ALL | Use.LONG_AGO),
    frame(RUN, "运行", nouns("program model"), ONE, DEED),
    frame(TEST, "测试", nouns("model program robot computer"), ANY, DEED, "office university"),
    # Post, travel and visits
    frame(SEND, "寄", nouns("letter postcard gift"), NEW, DONE),
    frame(RECEIVE, "收到", nouns("letter postcard gift"), NEW, Use.PAST | Use.FUTURE),
    frame(BOOK, "订", nouns("ticket room"), NEW, DONE, "internet"),
    frame(VISIT, "参观", nouns("museum school university factory library zoo"), ONE, DONE | Use.LONG_AGO | Use.EVER),
)
# fmt: on

EFFORTS = (
    MAKE, READ, WRITE, WATCH, SING, DRAW, CLEAN, WASH, REPAIR, CARRY, RIDE, DRIVE, CLIMB, PLANT, TRANSLATE, TRAIN, TEST,
)  # fmt: skip

# Verbs of state: the present tense without a time.
HAVE_OBJECTS = (
    PETS + nouns("horse cow car bicycle motorcycle computer phone camera robot piano guitar violin house garden")
    + nouns("dictionary umbrella ruler pen question plan hat watch ticket map")
)  # fmt: skip
LIKED_DRINKS = nouns("tea coffee milk juice beer")
LIKED = (
    ANIMALS[:8] + PETS + FRUIT + LIKED_DRINKS + BOOKS[1:4] + CLOTHES[2:6]
    + nouns("butterfly mouse tree flower movie song poem story cake chocolate noodles soup bread egg hat painting")
)  # fmt: skip
WANTED = (
    DRINKS + FRUIT + MACHINES[:3] + STATIONERY + DISHES[:3] + CLOTHES[:3]
    + nouns("sandwich soup noodles rice bread gift ticket map chair bicycle bag knife hammer scissors gloves paper")
)  # fmt: skip
UNDERSTOOD = nouns("question word sentence poem article story lesson plan")


class PersonVerb(NamedTuple):
    """A verb whose object is a person, which stands in place of {} in the plain and the completed Chinese form."""

    verb: Verb
    plain: str
    done: str


PERSON_VERBS = (
    PersonVerb(verb("call"), "给{}打电话", "给{}打了电话"),
    PersonVerb(HELP, "帮助{}", "帮助了{}"),
    PersonVerb(VISIT, "看望{}", "看望了{}"),
    PersonVerb(INVITE, "邀请{}", "邀请了{}"),
    PersonVerb(WAIT_FOR, "等{}", "等了{}"),
    PersonVerb(verb("thank"), "感谢{}", "感谢了{}"),
)
FEELINGS_FOR = (
    PersonVerb(LOVE, "爱{}", ""),
    PersonVerb(LIKE, "喜欢{}", ""),
    PersonVerb(MISS, "想念{}", ""),
    PersonVerb(KNOW, "认识{}", ""),
    PersonVerb(HATE, "讨厌{}", ""),
    PersonVerb(REMEMBER, "记得{}", ""),
    PersonVerb(UNDERSTAND, "理解{}", ""),
)


def activities(head: Verb, uses: Use, table: str) -> tuple[Activity, ...]:
    """Read the activities of one verb: English object (`-` for none), Chinese verb and object, places."""
    return tuple(
        Activity(
            head, "" if en == "-" else en, zh, "" if zh_object == "-" else zh_object, places(" ".join(where)), uses
        )
        for en, zh, zh_object, *where in rows(table)
    )


DO_IT = DEED | Use.HABIT

ACTIVITIES = (
    *activities(
        PLAY,
        ALL,
        """
        basketball 打 篮球 park school; tennis 打 网球 park school; table_tennis 打 乒乓球 home school;
        volleyball 打 排球 beach school; badminton 打 羽毛球 park garden; soccer 踢 足球 park school;
        the_piano 弹 钢琴 home school; the_guitar 弹 吉他 park room; the_violin 拉 小提琴 home room;
        chess 下 棋 park home; cards 打 牌 train hotel; computer_games 玩 电脑游戏 home room
    """,
    ),
    *activities(SWIM, DO_IT, "- 游泳 - river lake"),
    *activities(RUN, DO_IT, "- 跑步 - park street beach"),
    *activities(DANCE, DO_IT, "- 跳舞 - park room beach"),
    *activities(WORK, DO_IT, "- 工作 - hospital bank factory office supermarket airport"),
    *activities(SLEEP, DEED, "- 睡觉 - room train plane hotel"),
    *activities(REST, DEED, "- 休息 - home hotel garden"),
    *activities(COOK, DO_IT, "- 做饭 - kitchen home"),
    *activities(TAKE, DO_IT, "a_shower 洗澡 - home hotel; a_walk 散步 - park beach street"),
    *activities(TAKE, DO_IT, "some_medicine 吃 药 home hospital"),
    *activities(DO, DO_IT, "homework 做 作业 home library school; the_dishes 洗 碗 kitchen home"),
    *activities(WATCH, ALL, "TV 看 电视 home room hotel"),
    *activities(LISTEN_TO, ALL, "music 听 音乐 home train bus; the_radio 听 收音机 kitchen home"),
    *activities(FLY, DO_IT, "kites 放 风筝 park beach"),
    *activities(WATER, DEED, "the_flowers 浇 花 garden"),
    *activities(
        STUDY,
        ALL,
        """
        English 学习 英语 school home; Chinese 学习 中文 university home; math 学习 数学 school library;
        history 学习 历史 university library; French 学习 法语 Paris university; Japanese 学习 日语 Tokyo university;
        machine_learning 学习 机器学习 university; deep_learning 学习 深度学习 university
    """,
    ),
)
HOBBIES = tuple(a for a in ACTIVITIES if a.verb in (PLAY, SWIM, RUN, DANCE, COOK, WATCH, LISTEN_TO, FLY, STUDY))
SUBJECTS_OF_STUDY = tuple(Place(a.en_object, a.zh_object) for a in ACTIVITIES if a.verb is STUDY)
LANGUAGES = tuple(Place(en, zh) for en, zh in rows("English 英语; Chinese 中文; French 法语; Japanese 日语"))

# What one has learnt to do: "can" is 会 for these, and 能 for everything else.
SKILLS = (
    *(a for a in ACTIVITIES if a.verb in (PLAY, SWIM, DANCE, COOK) and a.en_object not in ("cards", "computer games")),
    *(Activity(SPEAK, place.en, "说", place.zh, (), ALL) for place in LANGUAGES),
    *activities(DRIVE, ALL, "- 开车 -"),
    *activities(FLY, ALL, "planes 开 飞机"),
    *activities(RIDE, ALL, "bicycles 骑 自行车; horses 骑 马"),
    *activities(SING, ALL, "- 唱歌 -"),
    *activities(WRITE, ALL, "programs 写 程序"),
)

# What animals do, and which of them.
BEASTS = nouns("cat dog rabbit monkey duck panda horse cow pig bear")
ANIMAL_ACTIVITIES = tuple(
    (animals, activity)
    for animals, group in (
        (nouns("cat dog rabbit"), activities(SLEEP, DO_IT, "- 睡觉 - sofa room")),
        (BEASTS, activities(SLEEP, DO_IT, "- 睡觉 - garden park")),
        (BEASTS, activities(PLAY, DO_IT, "- 玩 - garden park river")),
        (BEASTS, activities(DRINK, DO_IT, "water 喝 水 garden park")),
        (BEASTS, activities(RUN, DO_IT, "- 跑 - park garden")),
        (nouns("cat dog bear tiger"), activities(EAT, DO_IT, "meat 吃 肉 garden")),
        (nouns("duck bear"), activities(EAT, DO_IT, "fish 吃 鱼 river lake")),
        (nouns("rabbit horse cow elephant"), activities(EAT, DO_IT, "grass 吃 草 garden park")),
        (nouns("monkey elephant"), activities(EAT, DO_IT, "bananas 吃 香蕉 zoo tree")),
    )
    for activity in group
)


def colors(table: str) -> tuple[Adjective, ...]:
    """Read colors: "red" is 红色的 before a noun and 是红色的 after it, and is not compared."""
    return tuple(Adjective(en, zh + "色的", "", "", nouns(" ".join(names))) for en, zh, *names in rows(table))


def adjectives(table: str) -> tuple[Adjective, ...]:
    """Read adjectives: English, Chinese before a noun, Chinese predicate, comparative, and the nouns that fit."""
    return tuple(
        Adjective(en, before, bare, "" if comparative == "-" else comparative, nouns(" ".join(names)))
        for en, before, bare, comparative, *names in rows(table)
    )


COLORS = colors("""
        red 红 shirt coat sweater jacket skirt dress shoes socks scarf gloves hat car bicycle bus truck apple flower
            pen pencil umbrella bag cup bowl box door chair ball candle kite pants lamp;
        black 黑 cat dog horse bird pants shirt coat sweater jacket shoes socks glasses hat car motorcycle umbrella
            bag pen piano phone cup box computer watch sofa butterfly;
        white 白 cat dog horse rabbit bird duck shirt dress sweater shoes socks gloves cup plate bowl flower house
            door candle car cow bottle table;
        blue 蓝 shirt pants coat dress jacket skirt socks car bicycle pen cup bag kite ball umbrella truck hat bowl
            plate door notebook fish butterfly;
        green 绿 shirt skirt sweater apple car bird bottle bag ball snake jacket hat scarf pencil cup notebook bus
            bicycle;
        yellow 黄 bird flower dress umbrella taxi ball bag kite hat butterfly pencil sweater skirt duck bus cup
            scarf;
        brown 棕 dog horse bear cow shoes coat bag sofa table chair hat rabbit box gloves pants jacket;
        gray 灰 cat coat sweater pants mouse rabbit car hat bird shirt gloves sofa elephant;
        orange 橙 scarf skirt ball kite jacket candle cup fish bag bicycle umbrella lamp socks;
        light_blue 浅蓝 shirt dress skirt car scarf bag hat cup sweater pants umbrella;
        dark_blue 深蓝 pants coat jacket car socks sweater skirt hat bag truck gloves;
        light_green 浅绿 shirt dress skirt scarf bag hat cup sweater door chair;
        dark_green 深绿 coat jacket sweater pants hat car truck bag bottle sofa
    """)
ADJECTIVES = adjectives("""
        big 大 大 bigger cat dog fish bird house box bag table room park garden city ship tree stone plate cake
            apple watermelon kitchen factory library school supermarket mountain lake mirror window basket egg;
        small 小 小 smaller cat dog fish bird rabbit house box bag table room park garden village shop restaurant
            knife key plate cake apple car radio kitchen lake mirror hotel window spoon flower mouse;
        new 新 新 - shirt coat shoes dress skirt jacket pants hat car bicycle computer phone camera dictionary pen
            guitar piano house hospital bridge movie song word program model plan watch umbrella bag sofa book truck
            glasses;
        old 旧 旧 older car bicycle computer phone camera radio TV shirt coat shoes jacket watch dictionary
            newspaper piano guitar sofa bed table chair map photo bag ship train house truck magazine;
        old 老 老 older dog cat horse cow doctor farmer worker writer scientist tree;
        young 年轻的 年轻 younger teacher doctor man woman driver farmer singer nurse worker engineer writer
            scientist;
        long 很长的 长 longer river street letter article novel rope bridge scarf skirt dress story poem movie song
            snake train pencil;
        short 很短的 短 shorter letter article story poem song movie rope skirt pencil sentence lesson meeting;
        short 很矮的 矮 shorter man woman boy girl driver singer;
        tall 很高的 高 taller man woman boy girl student teacher tree singer engineer nurse driver mountain bridge;
        heavy 很重的 重 heavier box bag stone table sofa dictionary computer bed piano hammer chair bicycle;
        light 很轻的 轻 lighter box bag computer coat jacket camera bicycle chair shoes umbrella phone kite basket;
        hard 很难的 难 harder question sentence language exam word lesson;
        hard 很硬的 硬 harder bed chair bread sofa cookie;
        easy 简单的 简单 easier question exam sentence word program lesson article poem book novel;
        interesting 有趣的 有趣 - book story movie novel article match question lesson magazine museum city zoo;
        boring 无聊的 无聊 - book movie meeting lesson article novel match story magazine;
        expensive 很贵的 贵 - car computer phone camera watch ring piano violin hotel restaurant coat shoes ticket
            gift painting bag dress house;
        cheap 便宜的 便宜 cheaper computer phone camera watch hotel restaurant coat shoes ticket bag umbrella chair
            bicycle hat car;
        beautiful 漂亮的 漂亮 - flower bird butterfly horse dress skirt hat scarf garden park city house ring kite
            lamp village lake girl singer;
        delicious 好吃的 好吃 - cake cookie sandwich apple orange pear watermelon banana noodles bread fish
            chocolate;
        delicious 好喝的 好喝 - soup tea coffee juice;
        hot 热 热 - tea coffee water milk soup;
        sweet 很甜的 甜 - apple orange pear watermelon cake juice cookie;
        fresh 新鲜的 新鲜 - apple orange banana egg tomato carrot milk bread meat juice fish;
        clean 干净的 干净 cleaner shirt cup plate bowl room kitchen classroom hotel street restaurant river socks
            table city spoon;
        dirty 脏 脏 - shirt cup plate bowl socks shoes car coat pants spoon gloves truck bicycle;
        good 好 好 better book movie song teacher doctor student question restaurant dictionary camera school plan
            answer hospital guitar;
        important 重要的 重要 - meeting exam letter question lesson plan match article;
        famous 有名的 有名 - writer singer scientist university painting song museum novel restaurant city bridge
            poem;
        smart 聪明的 聪明 smarter child student boy girl dog monkey engineer scientist robot;
        friendly 友好的 友好 - neighbor nurse driver doctor teacher worker man woman;
        kind 善良的 善良 - neighbor nurse teacher doctor man woman girl farmer;
        cute 可爱的 可爱 cuter cat dog rabbit panda bird child monkey bear duck girl;
        comfortable 舒服的 舒服 - bed chair sofa shoes hotel sweater coat room jacket;
        useful 有用的 有用 - book dictionary word program map computer model lesson knife;
        warm 暖和的 暖和 warmer coat sweater jacket scarf gloves socks room kitchen;
        quiet 安静的 安静 - room street library park village hotel garden restaurant child;
        fast 很快的 快 faster car train computer horse bicycle motorcycle plane;
        slow 很慢的 慢 slower bus train computer ship program truck plane car;
        strong 强壮的 强壮 - man horse worker farmer boy bear;
        deep 很深的 深 - river lake
    """)
ADJECTIVES_OF: dict[Noun, tuple[Adjective, ...]] = {
    noun: tuple(a for a in (*COLORS, *ADJECTIVES) if noun in a.nouns) for noun in NOUNS.values()
}
OPPOSITES = tuple(
    {first, second}
    for first, second in rows("""
    big small; new old; old young; long short; tall short; heavy light; hard easy; interesting boring;
    expensive cheap; clean dirty; fast slow
""")
)

# What a person feels or is: 很 + adjective.
STATES = tuple(
    Place(en, zh)
    for en, zh in rows("""
    happy 高兴; sad 难过; tired 累; busy 忙; hungry 饿; thirsty 渴; angry 生气; nervous 紧张; sleepy 困; worried 担心;
    excited 激动; lonely 孤独; healthy 健康
""")
)

# People
NAMES = tuple(
    Person(en, zh, own_en, "他" if own_en == "his" else "她")
    for en, zh, own_en in rows("""
    Tom 汤姆 his; John 约翰 his; Peter 彼得 his; David 大卫 his; Jack 杰克 his; Li_Ming 李明 his; Anna 安娜 her;
    Mary 玛丽 her; Lucy 露西 her; Helen 海伦 her; Lily 莉莉 her; Wang_Fang 王芳 her
""")
)
FAMILY = tuple(
    Person(en, zh, own_en, "他" if own_en == "his" else "她")
    for en, zh, own_en in rows("""
    mother 妈妈 her; father 爸爸 his; older_brother 哥哥 his; younger_brother 弟弟 his; older_sister 姐姐 her;
    younger_sister 妹妹 her; son 儿子 his; daughter 女儿 her
""")
)


class Pronoun(NamedTuple):
    """A personal pronoun: subject, object and possessive, and the Chinese word for all three."""

    subject: str
    object: str
    possessive: str
    zh: str


PRONOUNS = (
    Pronoun("I", "me", "my", "我"),
    Pronoun("you", "you", "your", "你"),
    Pronoun("he", "him", "his", "他"),
    Pronoun("she", "her", "her", "她"),
    Pronoun("we", "us", "our", "我们"),
    Pronoun("they", "them", "their", "他们"),
)


# Times
def times(table: str) -> tuple[Time, ...]:
    """Read time phrases."""
    return tuple(Time(en, zh) for en, zh in rows(table))


WEEKDAYS = times("""
    on_Monday 星期一; on_Tuesday 星期二; on_Wednesday 星期三; on_Thursday 星期四; on_Friday 星期五;
    on_Saturday 星期六; on_Sunday 星期天
""")
RECENT_TIMES = times("""
    yesterday 昨天; last_night 昨晚; this_morning 今天早上; yesterday_morning 昨天早上; yesterday_afternoon 昨天下午;
    last_Sunday 上个星期天; last_Friday 上个星期五; two_days_ago 两天前; three_days_ago 三天前
""")
PAST_YEARS = times("""
    last_week 上个星期; last_month 上个月; last_year 去年; six_months_ago 六个月前; five_years_ago 五年前;
    ten_years_ago 十年前
""")
SOON = times("""
    tomorrow 明天; tonight 今晚; tomorrow_morning 明天早上; tomorrow_afternoon 明天下午; tomorrow_evening 明天晚上;
    this_weekend 这个周末; next_Saturday 下个星期六; after_dinner 晚饭后
""")
FUTURE_YEARS = times("next_week 下个星期; next_month 下个月; next_year 明年")
HABIT_TIMES = times(
    "every_day 每天; every_morning 每天早上; every_evening 每天晚上; every_week 每个星期; on_weekends 周末"
)
ADVERBS = times("often 经常; usually 通常; always 总是; sometimes 有时候; never 从来不")
NUMBERS = times("two 两; three 三; four 四; five 五; six 六; seven 七; eight 八; nine 九; ten 十")
HOURS = times("""
    one 一; two 两; three 三; four 四; five 五; six 六; seven 七; eight 八; nine 九; ten 十; eleven 十一; twelve 十二
""")
AGES = NUMBERS[3:] + times("eleven 十一; twelve 十二; twenty 二十; thirty 三十; forty 四十; fifty 五十")
TENS = AGES[-4:]

# Where a thing is: a preposition and a piece of furniture that fit each other.
SPOTS = tuple(
    Place(en, zh)
    for en, zh in rows("""
    on_the_table 桌子上; on_the_chair 椅子上; on_the_bed 床上; on_the_sofa 沙发上; under_the_table 桌子下面;
    under_the_bed 床下面; under_the_chair 椅子下面; in_the_box 盒子里; in_the_bag 包里; in_the_basket 篮子里;
    behind_the_door 门后面; behind_the_sofa 沙发后面; next_to_the_window 窗户旁边; next_to_the_computer 电脑旁边;
    next_to_the_lamp 台灯旁边; in_front_of_the_mirror 镜子前面
""")
)


def pairs(table: str) -> tuple[tuple[str, str], ...]:
    """Read pairs of words."""
    return tuple((head, noun) for head, noun in rows(table))


# Combinations that occur in test_compositional only: a verb with its object, and an adjective with its noun.
HELD_OUT_OBJECTS = pairs("""
    eat banana; eat carrot; eat sandwich; drink juice; make cookie; cut potato; buy scarf; buy magazine; buy lamp;
    buy watch; buy pear; buy TV; sell motorcycle; borrow novel; read newspaper; read poem; write article;
    write postcard; draw butterfly; draw tree; see monkey; see rabbit; see hammer; see truck; find ring;
    lose umbrella; wash skirt; wash plate; repair radio; repair chair; use knife; bring camera; open bag;
    wear sweater; wear gloves; catch mouse; feed duck; learn poem; translate letter; test robot; receive gift;
    visit factory; have rabbit; have guitar; want pencil; give cookie; clean house
""")
HELD_OUT_MODIFIERS = pairs("""
    red umbrella; red apple; black horse; black piano; white rabbit; white plate; blue bicycle; blue cup; green bag;
    yellow bird; yellow dress; brown table; gray cat; orange scarf; light_blue skirt; dark_blue coat;
    light_green hat; dark_green truck; big box; small cake; small restaurant; new phone; new bridge; old car;
    old doctor; young singer; long story; long poem; short skirt; short boy; heavy dictionary; light chair;
    hard exam; hard sofa; easy word; interesting article; boring movie; expensive camera; cheap bicycle;
    beautiful garden; beautiful butterfly; delicious cake; sweet watermelon; fresh orange; clean kitchen;
    dirty plate; good movie; good teacher; important letter; famous bridge; smart dog; kind nurse; cute bear;
    comfortable chair; useful knife; warm jacket; quiet room; fast train; slow computer; strong horse
""")
