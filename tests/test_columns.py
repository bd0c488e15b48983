"""What values of columns mean: numbers and dates in any form, against the plainest possible reading."""

import datetime
import math
from decimal import Decimal

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings

from recollect.tables import columns
from recollect.tables.dates import GUESSED, DateForm, likely_forms, parse_dates
from recollect.tables.encoding import Drift
from recollect.tables.examining import examine, fit_encoding
from recollect.tables.summaries import Summary
from recollect.tables.values import all_plain, class_names, parse_numbers, unit_of


def texts(*values: str | None) -> pa.ChunkedArray:
    return pa.chunked_array([pa.array(values, pa.string())])


def written(number: Decimal, group: str, point: str, before: str, after: str) -> str:
    plain = f"{number:,.2f}".replace(",", "_").replace(".", point).replace("_", group)
    return f"{before}{plain}{after}"


@given(
    number=st.decimals(-(10**9), 10**9, places=2),
    style=st.sampled_from([(",", "."), (".", ","), ("", "."), ("", ","), ("'", "."), (" ", ","), ("\u202f", ",")]),
    around=st.sampled_from([("", ""), ("", " €"), ("$", ""), ("CHF ", ""), ("", "%"), ("", " %"), ("  ", " ")]),
)
def test_numbers_are_read_in_any_of_the_usual_forms(
    number: Decimal, style: tuple[str, str], around: tuple[str, str]
) -> None:
    group, point = style
    text = written(number, group, point, *around).strip()
    assert parse_numbers(texts(text), "comma" if point == "," else "point").tolist() == [float(number)]


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("(5)", -5),
        ("($5)", -5),
        ("(-5 €)", -5),
        ("5-", -5),
        ("$5-", -5),
        ("-$5", -5),
        ("$-5", -5),
        ("$ - 5", -5),
        ("+5%", 5),
    ],
)
def test_a_sign_or_brackets_say_that_a_number_is_negative(text: str, number: float) -> None:
    assert parse_numbers(texts(text, "word"), "point").tolist()[0] == number


@given(st.lists(st.text("0123456789()+-−$€%.,' eE", max_size=7)))
@example(["3)", "(2", "-5-", "+$-5", "(+5)", "(5", "-(5)", "(5-)", "5)-", "--5", "-$-5", "+5-", "$-5-"])
def test_a_text_that_is_nearly_a_number_is_none(found: list[str]) -> None:
    for form in ("point", "comma"):
        numbers = parse_numbers(texts(*found), form)
        for text, number in zip(found, numbers, strict=True):
            signs = sum(text.partition("e")[0].partition("E")[0].count(sign) for sign in "+-−")
            if text.count("(") != text.count(")") or signs > 1:
                assert np.isnan(number), text


@given(st.lists(st.text("0123456789.,eE+-", max_size=8), min_size=1, max_size=3))
@example(["1,234", "5"])
@example(["1.234", "0.234", "1234.567"])
@example(["+1.234", "-1e5", "1.5e-3", ".5"])
@example(["EUR1"])
def test_a_number_is_the_same_beside_others_of_any_form(found: list[str]) -> None:
    for form in ("point", "comma"):  # plain numbers by themselves are read the quick way
        alone, beside = (parse_numbers(texts(*found, *others), form)[: len(found)] for others in ([], ["7 %", "(1)"]))
        np.testing.assert_array_equal(alone, beside)


@given(day=st.dates(datetime.date(1970, 1, 1), datetime.date(2068, 12, 31)), time=st.times())
def test_dates_are_read_in_any_of_the_usual_forms(day: datetime.date, time: datetime.time) -> None:
    clock = time.replace(microsecond=0)
    moment = datetime.datetime.combine(day, clock)
    expected = (moment - datetime.datetime(1970, 1, 1)).total_seconds()
    names = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
    for form, text in {
        "iso": f"{day} {clock}",
        "dmy": f"{day.day}.{day.month}.{day.year} {clock}",
        "mdy": f"{day.month}/{day.day}/{day.year} {clock.hour % 12 or 12}:{clock:%M:%S} {clock:%p}",
        "named": f"{names[day.month - 1]} {day.day}, {day.year} {clock}",
        "compact": f"{day:%Y%m%d} {clock}",
    }.items():
        assert parse_dates(texts(text), form).tolist() == [expected], (form, text)  # type: ignore[arg-type]
        assert form == "compact" or form in likely_forms(texts("word", text), GUESSED)


@pytest.mark.parametrize(
    ("form", "text", "clock"),
    [
        ("iso", "2024-01-02 12:00:30+00", "12:00:30"),
        ("iso", "2024-01-02 12:00:30.5-05", "17:00:30.5"),
        ("iso", "2024-01-02 12:00:30,123", "12:00:30.123"),
        ("iso", "2024-01-02 12:00:30 GMT", "12:00:30"),
        ("iso", "20240102T120030Z", "12:00:30"),
        ("iso", "20240102T120030+0200", "10:00:30"),
        ("iso", "20240102T1200", "12:00:00"),
        ("iso", "20240102T12:00:30.5", "12:00:30.5"),
        ("named", "Tue, 02 Jan 2024 12:00:30 GMT", "12:00:30"),
        ("named", "Tuesday, January 2, 2024", "00:00:00"),
        ("dmy", "02.01.2024 12:00:30,5", "12:00:30.5"),
    ],
)
def test_dates_are_read_as_databases_write_them(form: DateForm, text: str, clock: str) -> None:
    expected = np.datetime64(f"2024-01-02T{clock}", "ms").astype(int) / 1000
    assert parse_dates(texts(text), form).tolist() == [expected]
    assert Summary("t", pa.string(), False, None).look(texts(text)).may_be[:1] == [form]


def test_digits_without_a_time_are_no_date_unless_asked_for() -> None:
    for text in ("20240102", "20240102T", "20240102T1", "20241302T120000", "202401021200"):
        assert np.isnan(parse_dates(texts(text), "iso")).all()


@pytest.mark.parametrize(
    ("text", "number"),
    [("₹12,34,567", 1234567), ("1,23,456.50", 123456.5), ("-₹ 1,00,00,000", -(10**7)), ("12,34,5", None)],
)
def test_digits_are_grouped_as_in_india(text: str, number: float | None) -> None:
    point, comma = (parse_numbers(texts(text), form)[0] for form in ("point", "comma"))
    assert (np.isnan(point) if number is None else point == number) and np.isnan(comma)


def test_no_date_is_no_date() -> None:
    wrong = ("31.02.2024", "2024-13-01", "0.1.2024", "1.1.1", "99/99/2024", "", None, "word", "2024-01-01 25:61")
    for form in ("iso", "dmy", "mdy", "named", "compact"):
        assert np.isnan(parse_dates(texts(*wrong), form)).all()  # type: ignore[arg-type]


def kinds(**columns: list[str]) -> dict[str, tuple[str, str]]:
    n = len(next(iter(columns.values())))
    table = pa.table({**columns, "y": ["a", "b"] * (n // 2) + ["a"] * (n % 2)})
    found = examine([table.slice(0, 7), table.slice(7)], "y").account()
    return {name: (found[name].kind, found[name].note) for name in columns}


def test_a_mark_that_one_column_does_not_tell_is_told_by_another() -> None:
    thousands = [f"{i}.{100 + i}" for i in range(1, 31)]
    assert kinds(price=thousands)["price"] == ("number", "decimal point")
    found = kinds(price=thousands, size=[f"{i},5" for i in range(30)])
    assert found == {"price": ("number", "decimal comma"), "size": ("number", "decimal comma")}
    found = kinds(price=[f"{i},{100 + i}" for i in range(1, 31)], size=[f"{i}.5" for i in range(30)])
    assert found["price"] == ("number", "decimal point")  # thousands


def test_a_few_stray_values_are_missing_and_many_make_it_text() -> None:
    column = [str(i * 7 % 50) for i in range(60)]
    few, many = [*column[:58], "lost", "lost"], [*column[:40], *[f"word {i % 3}" for i in range(20)]]
    assert kinds(c=few)["c"] == ("number", "2 that are none, such as 'lost', taken as missing")
    assert kinds(c=many)["c"][0] in ("category", "ignored")


def test_numbers_and_dates_with_much_else_among_them_are_said_to_be_such() -> None:
    table = pa.table(
        {
            "price": [f"{i}.25" for i in range(90)] + ["on request"] * 10,
            "day": [f"{i % 28 + 1:02}.03.2024" for i in range(80)] + ["2024-03-01"] * 20,
            "tax": [f"{i % 4}.5" for i in range(90)] + ["none of it"] * 10,
            "size": ["38", "40", "42", "S"] * 25,
            "code": [f"A{i}" for i in range(100)],
            "y": ["a", "b"] * 50,
        }
    )
    account = examine([table], "y").account()
    assert account["price"].note == "90 numbers and 10 others such as 'on request': set aside"
    mixed = "80 dates and 20 others such as '2024-03-01', taken as categories: "
    assert account["day"].kind == "category"
    assert account["day"].note == f"{mixed}kinds={{'day': 'date'}} takes the others as missing"
    assert account["tax"].kind == "category" and account["tax"].note.startswith("90 numbers and 10 others")
    assert account["size"].note == "" and account["code"].note == "nearly every value differs: set aside"
    told = list(account.notes())
    assert told[0].startswith(f"day: {mixed}") and told[1].startswith("tax: 90 numbers")
    assert told[2].startswith("not looked at: price (90 numbers and 10 others such as 'on request'), code (nearly")
    asked = {"day": "date", "tax": "category"}
    account = examine([table], "y", kinds=asked).account()
    assert account["day"].missing == 20 and not any(note.startswith("tax") for note in account.notes())


def test_later_strays_are_missing_and_told_and_another_column_is_refused() -> None:
    first = pa.table({"x": [str(i) for i in range(3, 63)], "y": ["a", "b"] * 30})
    encoding, drift = fit_encoding([first], "y"), Drift()
    encoding.features(first.set_column(0, "x", pa.array(["odd", "n/a", *["7"] * 58])), drift)
    assert drift.strays == {"x": 1} and drift.missing == {"x": 1}
    with pytest.raises(ValueError, match=r"'x' must hold numbers as in the first file, got 'word' and 59 others"):
        encoding.features(first.set_column(0, "x", pa.array(["word"] * 60)), Drift())


def test_words_for_missing_values_are_no_category() -> None:
    table = pa.table(
        {"c": ["red", "NA", "blue", " ", "n/a", None] * 5, "x": [1.0, 2.0, 3.0] * 10, "y": ["NA", "b"] * 15}
    )
    found = examine([table], "y")
    assert found.account()["c"].missing == 20 and found.account()["c"].distinct == 2
    encoding = found.encoding()
    assert encoding.columns[0].values == ["blue", "red"]
    assert encoding.classes == ["NA", "b"]  # a class may have any name
    drift = Drift()
    features = encoding.features(table.slice(0, 6), drift)[:, :3]
    assert features.tolist() == [[0, 1, 0], [0, 0, 0], [1, 0, 0], [0, 0, 0], [0, 0, 0], [0, 0, 0]]
    assert not drift.sentences()
    encoding.columns[0].values = ["NA", "red"]  # as stores that were made before have it
    assert encoding.features(table.slice(0, 3), drift)[:, :3].tolist() == [[0, 1, 0], [1, 0, 0], [0, 0, 1]]


def test_what_columns_are_can_be_said() -> None:
    table = pa.table({"zip": list(range(3, 63)), "day": ["20240131"] * 60, "id": list(range(60)), "y": ["a", "b"] * 30})
    table = table.set_column(1, "day", pa.array([f"202401{1 + i % 30:02d}" for i in range(60)]))
    said = {"zip": "category", "day": "date", "id": "number"}
    found = examine([table], "y", kinds=said).account()
    assert [found[name].kind for name in said] == ["category", "date", "number"]
    assert found["zip"].features == 61
    for wrong in ({"zip": "colour"}, {"nothing": "number"}, {"y": "ignored"}):
        with pytest.raises(ValueError, match=r"^[^\n]*$"):
            examine([table], "y", kinds=wrong)
    with pytest.raises(ValueError, match="must hold dates, got text such as 'a'"):
        examine([table], None, kinds={"y": "date"})


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.lists(
            st.sampled_from(["", "NA", "3", "4", "1,5", "1.5", "007", "12/31/2024", "31/12/2024", "red", "5 €", "-"]),
            min_size=1,
            max_size=6,
        ),
        min_size=2,
        max_size=6,
    ),
    st.sampled_from([None, "date", "category"]),
    st.sampled_from([1, 400]),
)
@example([["NA"], ["31/12/2024"], ["red"]], None, 1)
def test_parts_looked_at_apart_and_folded_in_order_say_what_all_rows_say(
    parts: list[list[str]], wanted: str | None, times: int
) -> None:
    pieces = [pa.chunked_array([pa.array([text or None for text in part] * times, pa.string())]) for part in parts]
    _fold_as_one(pieces, *(Summary("x", pa.string(), False, wanted) for _ in range(2)))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.sampled_from([0.0, 1.0, 2.0, 3.0, 0.1, 1e9, None]), min_size=1, max_size=6), min_size=2),
    st.booleans(),
)
def test_parts_of_numbers_are_folded_in_to_the_last_bit(parts: list[list[float | None]], is_target: bool) -> None:
    pieces = [pa.chunked_array([pa.array(part, pa.float64())]) for part in parts]
    _fold_as_one(pieces, *(Summary("x", pa.float64(), is_target, None) for _ in range(2)))


def _fold_as_one(pieces: list[pa.ChunkedArray], one: Summary, other: Summary) -> None:
    """One is shown all pieces, the other is told of all but the first."""
    for piece in pieces:
        one.add(piece)
    other.add(pieces[0])
    for glimpse in [other.look(piece, later=True) for piece in pieces[1:]]:
        other.fold(glimpse)
    assert vars(one) == vars(other) and list(one.distinct) == list(other.distinct)


PLAIN = st.from_regex(r"[+-]?([0-9]{1,8}\.?[0-9]{0,8}|\.[0-9]{1,8})([eE][+-]?[0-9]{1,2})?", fullmatch=True)


@given(st.lists(PLAIN, min_size=1, max_size=4))
@example(["-1.55"])
@example(["2024.12"])
@example(["2024.1e-5"])
@example(["12312024"])
def test_plain_numbers_need_no_look_for_units_and_dates(found: list[str]) -> None:
    """So that wide tables are not asked, column by column."""
    some = texts(*found)
    assert all_plain(some)
    assert unit_of(some) is None
    assert all(np.isnan(parse_dates(some, form)).all() for form in GUESSED)


@pytest.mark.parametrize("unit", ["0.1", "1"])  # so many whole numbers are a quantity, too
def test_a_target_of_numbers_with_much_else_among_them_is_asked_about(unit: str) -> None:
    quantity = [f"{i * 37 % 150 * Decimal(unit)}" for i in range(400)]
    mixed = ["inf" if i % 5 == 0 else text for i, text in enumerate(quantity)]
    table = pa.table({"x": np.arange(400) % 7 * 0.5, "y": mixed})
    with pytest.raises(ValueError, match=r"got 320 numbers and 80 values such as 'inf': pass kinds=\{'y': 'number'\}"):
        fit_encoding([table], "y")
    taken = fit_encoding([table], "y", kinds={"y": "number"}, drop_missing_target=True)
    assert taken.task == "regression"
    assert fit_encoding([table], "y", kinds={"y": "category"}).task == "classification"
    assert fit_encoding([table], "y", task="classification").task == "classification"
    grades = table.set_column(1, "y", pa.array([str(i % 4) if i % 5 else "absent" for i in range(400)]))
    assert fit_encoding([grades], "y").classes == ["0", "1", "2", "3", "absent"]


@pytest.mark.parametrize("kind", [pa.int64(), pa.uint64(), pa.decimal128(38, 2), pa.string()])
def test_classes_of_more_digits_than_a_float_has_stay_apart(kind: pa.DataType) -> None:
    numbers = [10**18, 10**18 + 1, 10**18 + 500] * 20
    y = pa.array([str(number) for number in numbers]) if kind == pa.string() else pa.array(numbers, kind)
    table = pa.table({"x": [float(i % 7) for i in range(60)], "y": y})
    found = examine([table], "y", task="classification")
    assert found.account()["y"].note == "3 classes"
    encoding = found.encoding()
    assert encoding.classes == [str(number) for number in numbers[:3]]
    assert encoding.targets(table, Drift()).tolist() == [0, 1, 2] * 20


def test_a_class_is_named_alike_in_all_types_of_numbers() -> None:
    for three in (3, 3.0, Decimal("3.00")):
        assert class_names(pa.chunked_array([pa.array([three, None])])) == ["3", "nan"]
    for quarter in (0.25, Decimal("0.250")):
        assert class_names(pa.chunked_array([pa.array([quarter])])) == ["0.25"]


def test_numbers_too_large_to_be_told_apart_are_not_said_to_be_one_value() -> None:
    table = pa.table(
        {"code": [str(10**25 + i) for i in range(60)], "same": [str(10**25)] * 60, "x": ["1", "2", "3"] * 20}
    )
    found = {column.name: column for column in examine([table], None).account().columns}
    assert (found["code"].kind, found["same"].kind) == ("ignored", "nothing")
    assert found["code"].note == "too large to be told apart as numbers: set aside"
    assert found["same"].note == "one value"


@pytest.mark.parametrize("kind", [pa.int64(), pa.uint64(), pa.decimal128(38, 0)])
def test_the_same_holds_for_numbers_that_are_no_text(kind: pa.DataType) -> None:
    code = pa.array([2**62 + i for i in range(60)], kind)
    table = pa.table({"code": code, "same": pa.array([2**62] * 60, kind), "x": [1, 2, 3] * 20})
    found = {column.name: column for column in examine([table], None).account().columns}
    assert (found["code"].kind, found["same"].kind) == ("ignored", "nothing")
    assert found["code"].note == "too large to be told apart as numbers: set aside"
    with pytest.raises(ValueError, match=r"the target 'code' must hold numbers that can be told apart as floats"):
        fit_encoding([table], "code", task="regression")


def test_infinity_is_missing_and_told_of() -> None:
    numbers = [float(i) if i % 5 else -math.inf for i in range(60)]
    table = pa.table({"f": numbers, "all": [math.inf] * 60, "y": ["a", "b"] * 30})
    found = examine([table], "y")
    f, none, _ = found.account().columns
    assert (f.kind, f.missing, f.features, f.note) == ("number", 12, 2, "12 infinite, taken as missing")
    assert (none.kind, none.missing, none.note) == ("nothing", 60, "no values")
    features = found.encoding().features(table, Drift())
    assert features[:, 1].tolist() == [float(i % 5 == 0) for i in range(60)]


@pytest.mark.parametrize(
    ("dates", "kinds", "note"),
    [
        (["01/02/2024", "03/04/2024"], {}, "month first by default: kinds={'when': 'date-dmy'} otherwise"),
        (["01/02/2024", "03/04/2024"], {"when": "date-dmy"}, "day first"),
        (["01/02/2024", "03/04/2024"], {"when": "date-mdy"}, "month first"),
        (["01/02/2024", "31/03/2024", "30/04/2024"], {}, "day first"),
        (["01.02.2024", "03.04.2024"], {}, "day first"),
    ],
)
def test_it_is_told_which_of_day_and_month_comes_first(dates: list[str], kinds: dict[str, str], note: str) -> None:
    table = pa.table({"when": dates * 10, "y": ["a", "b"] * (5 * len(dates))})
    assert columns(table, "y", kinds=kinds)["when"].note == note
