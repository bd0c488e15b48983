"""Make the files of this folder: small tables as people have them. `python tests/files/make.py` writes them anew.

What is expected of each is in `expected.toml`, written by hand.
"""

import bz2
import datetime
import gzip
import io
import json
import random
import zipfile
from collections.abc import Callable, Iterable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import openpyxl
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet

HERE = Path(__file__).parent
N = 40

Rows = list[dict[str, Any]]


def rng(name: str) -> random.Random:
    return random.Random(name)


def day(i: int) -> datetime.date:
    return datetime.date(2024, 1, 1) + datetime.timedelta(days=9 * i)


def text(
    rows: Rows,
    delimiter: str = ",",
    end: str = "\n",
    quote: Callable[[str], str] = lambda value: value,
    header: str = "",
) -> str:
    """Lines of values, each as the caller wrote it."""
    lines = [header or delimiter.join(quote(name) for name in rows[0])]
    lines += [delimiter.join("" if v is None else str(v) for v in row.values()) for row in rows]
    return end.join(lines) + end


def quoted(value: str) -> str:
    return '"' + value.replace('"', '""') + '"'


def german(number: float, digits: int = 2) -> str:
    return f"{number:,.{digits}f}".replace(",", "_").replace(".", ",").replace("_", ".")


def made(name: str, row: Callable[[int, random.Random], dict[str, Any]], n: int = N) -> Rows:
    chance = rng(name)
    return [row(i, chance) for i in range(n)]


def label(chance: random.Random, *names: str) -> str:
    return chance.choice(names)


# Text with delimiters


def bank() -> bytes:
    rows = made(
        "bank",
        lambda i, c: {
            "age": c.randint(18, 80),
            "job": quoted(label(c, "admin.", "services", "retired")),
            "balance": c.randint(-900, 9000),
            "contact": quoted(label(c, "unknown", "cellular")),
            "y": quoted(label(c, "yes", "no")),
        },
    )
    return text(rows, ";", quote=quoted).encode()


def wine() -> bytes:
    rows = made(
        "wine",
        lambda i, c: {
            "fixed acidity": round(c.uniform(5, 12), 1),
            "density": round(c.uniform(0.99, 1.01), 5),
            "alcohol": round(c.uniform(8, 14), 1),
            "quality": c.randint(4, 7),
        },
    )
    return text(rows, ";", quote=quoted).encode()


def german_sales() -> bytes:
    rows = made(
        "german",
        lambda i, c: {
            "Datum": f"{day(i):%d.%m.%Y}",
            "Umsatz": german(c.uniform(500, 90000)) + " €",
            "Menge": german(c.uniform(0.5, 9), 1),
            "Filiale": label(c, "München", "Köln", "Zürich"),
            "Rückgabe": label(c, "ja", "nein"),
        },
    )
    return (
        text(rows, ";", "\r\n").encode("latin-1", errors="replace").replace(b"?", b"\x80")
    )  # as Windows writes the euro


def german_numbers() -> bytes:
    rows = made(
        "numbers",
        lambda i, c: {
            "Fläche": german(c.uniform(10, 99), 1),
            "Preis": german(c.randint(1000, 999999), 0),
            "Art": label(c, "neu", "alt"),
        },
    )
    return text(rows, ";").encode("latin-1")


def french() -> bytes:
    rows = made(
        "french",
        lambda i, c: {
            "date": f"{day(i):%d/%m/%Y}",
            "montant": f"{c.randint(1, 9)}\u202f{c.randint(100, 999)},{c.randint(10, 99)}",
            "région": label(c, "Île-de-France", "Bretagne"),
            "réglé": label(c, "oui", "non"),
        },
    )
    return text(rows, ";").encode("utf-8-sig")


def us_housing() -> bytes:
    rows = made(
        "housing",
        lambda i, c: {
            "sold": f"{day(i):%m/%d/%Y}",
            "price": quoted(f"${c.randint(90_000, 2_000_000):,}"),
            "sqft": quoted(f"{c.randint(700, 5000):,}"),
            "zip": f"0{c.randint(1001, 1009)}",
            "waterfront": label(c, "Y", "N"),
        },
    )
    return text(rows).encode()


def swiss() -> bytes:
    rows = made(
        "swiss",
        lambda i, c: {
            "Betrag": f"CHF {c.randint(1, 9)}'{c.randint(100, 999)}.{c.randint(10, 99)}",
            "Kanton": label(c, "ZH", "BE", "GE"),
            "bezahlt": label(c, "1", "0"),
        },
    )
    return text(rows, ";").encode()


def excel_sep() -> bytes:
    rows = made("sep", lambda i, c: {"a": german(c.uniform(0, 9)), "b": c.randint(0, 9), "ok": label(c, "x", "y")})
    return ("sep=;\r\n" + text(rows, ";", "\r\n")).encode()


def unicode_text() -> bytes:
    rows = made(
        "unicode",
        lambda i, c: {"Größe": c.randint(150, 200), "Ort": label(c, "Łódź", "Århus"), "ja": label(c, "ja", "nein")},
    )
    return text(rows, "\t", "\r\n").encode("utf-16")


def utf16_le() -> bytes:
    rows = made("le", lambda i, c: {"x": c.random(), "k": label(c, "a", "b"), "y": label(c, "u", "v")})
    return text(rows).encode("utf-16-le")


def iris() -> bytes:
    rows = made(
        "iris",
        lambda i, c: {
            "sepal length": round(c.uniform(4, 8), 1),
            "petal width": round(c.uniform(0, 3), 1),
            "species": ("setosa", "versicolor", "virginica")[i % 3],
        },
    )
    return text(rows, "\t").encode()


def pipes() -> bytes:
    rows = made(
        "pipes",
        lambda i, c: {"sensor": f"s{c.randint(1, 4)}", "value": f"{c.gauss(0, 1):.3e}", "alarm": label(c, "on", "off")},
    )
    return text(rows, "|").encode()


def titanic() -> bytes:
    rows = made(
        "titanic",
        lambda i, c: {
            "PassengerId": i + 1,
            "Survived": c.randint(0, 1),
            "Pclass": c.randint(1, 3),
            "Name": quoted(f'Smith, Mr. No{i} "Jack"'),
            "Sex": label(c, "male", "female"),
            "Age": None if i % 7 == 0 else c.randint(1, 80),
            "Ticket": f"PC {17000 + 37 * i}",
            "Fare": round(c.uniform(5, 500), 4),
            "Cabin": f"C{i}" if i % 9 == 0 else None,
            "Embarked": label(c, "S", "C", "Q"),
        },
    )
    return text(rows).encode()


def adult() -> bytes:
    rows = made(
        "adult",
        lambda i, c: {
            "age": c.randint(17, 90),
            "workclass": " " + label(c, "Private", "State-gov", "?"),
            "hours": f" {c.randint(10, 60)}",
            "native": " " + label(c, "Cuba", "India"),
            "income": " " + label(c, "<=50K", ">50K"),
        },
    )
    return text(rows).encode()


def churn() -> bytes:
    rows = made(
        "churn",
        lambda i, c: {
            "customerID": f"{c.randint(1000, 9999)}-{''.join(c.choices('ABCDEF', k=5))}",
            "tenure": i % 13,
            "TotalCharges": " " if i in (5, 17) else f"{c.uniform(20, 8000):.2f}",
            "Contract": label(c, "Month-to-month", "Two year"),
            "Churn": label(c, "Yes", "No"),
        },
    )
    return text(rows).encode()


def percent() -> bytes:
    rows = made(
        "percent",
        lambda i, c: {
            "rate": f"{c.uniform(0, 100):.1f}%",
            "growth": f"{c.uniform(-9, 9):+.2f} %",
            "open": label(c, "TRUE", "FALSE"),
        },
    )
    return text(rows).encode()


def stray() -> bytes:
    rows = made(
        "stray",
        lambda i, c: {
            "income": "n/a" if i in (3, 11) else c.randint(1000, 9000),
            "debt": "#N/A" if i == 8 else round(c.uniform(0, 99), 2),
            "rent": "unknown" if i == 20 else c.randint(300, 2000),
            "score": "-" if i % 10 == 0 else c.randint(0, 100),
            "good": label(c, "good", "bad"),
        },
    )
    return text(rows).encode()


def written_dates() -> bytes:
    rows = made(
        "dates",
        lambda i, c: {
            "signed": quoted(f"{day(i):%b %d, %Y}"),
            "seen": f"{day(i).isoformat()}T{i % 24:02d}:30:00+02:00",
            "left": f"{day(i):%d-%b-%y}",
            "at": f"{day(i).month}/{day(i).day}/{day(i).year} {i % 12 + 1}:05 PM",
            "stays": label(c, "y", "n"),
        },
    )
    return text(rows).encode()


def ambiguous_dates() -> bytes:
    rows = made(
        "ambiguous",
        lambda i, c: {
            "when": f"{c.randint(1, 12):02d}/{c.randint(1, 12):02d}/2024",
            "there": f"{c.randint(1, 12):02d}.{c.randint(1, 12):02d}.2024",
            "x": c.random(),
            "y": label(c, "a", "b"),
        },
    )
    return text(rows).encode()


def survey() -> bytes:
    rows = made(
        "survey",
        lambda i, c: {
            "rating": c.randint(1, 5),
            "comment": quoted(f'I think that "{i}" is,\nall in all, a nice number; {c.random():.3f}'),
            "again": label(c, "yes", "maybe", "no"),
        },
    )
    return text(rows).encode()


def own_weight() -> bytes:
    rows = made(
        "weight", lambda i, c: {"row": label(c, "A", "B"), "weight": c.randint(50, 120), "sick": label(c, "1", "0")}
    )
    return text(rows).encode()


def pandas_index() -> bytes:
    rows = made("index", lambda i, c: {"": i, "Unnamed: 0": 3 * i, "x": c.random(), "y": label(c, "p", "q")})
    return text(rows).encode()


def trailing() -> bytes:
    rows = made("trailing", lambda i, c: {"x": c.random(), "y": label(c, "p", "q"), "": None})
    return text(rows, ";").encode()


def windows() -> bytes:
    rows = made(
        "windows",
        lambda i, c: {
            "price": f"€{c.randint(1, 99)}",
            "name": quoted(label(c, "“smart”", "O’Neil", "plain")),
            "sold": label(c, "yes", "no"),
        },
    )
    return text(rows, ",", "\r\n").encode("cp1252")


def doubled_quotes() -> bytes:
    rows = made(
        "quotes",
        lambda i, c: {
            "size": quoted(label(c, '5" disk', '3,5" disk', "tape")),
            "mass": c.randint(1, 9),
            "keeps": label(c, "yes", "no"),
        },
    )
    return text(rows).encode()


def escaped() -> bytes:
    rows = made(
        "escaped",
        lambda i, c: {
            "said": label(c, r'"\"hi\", she said"', r'"\"bye\", he said"', '"nothing"'),
            "n": c.randint(1, 9),
            "true": label(c, "t", "f"),
        },
    )
    return text(rows).encode()


def single_quoted() -> bytes:
    rows = made(
        "single",
        lambda i, c: {
            "'color'": label(c, "'red, dark'", "'blue'"),
            "'n'": c.randint(1, 9),
            "'y'": label(c, "'a'", "'b'"),
        },
    )
    return text(rows).encode()


def ragged() -> bytes:
    rows = made("ragged", lambda i, c: {"x": c.random(), "note": label(c, "fine", "poor"), "y": label(c, "a", "b")})
    lines = text(rows).splitlines()
    lines[16] = "0.5,one, two,a"
    lines[30] = "0.25"
    return ("\n".join(lines) + "\n").encode()


def unlabelled() -> bytes:
    rows = made("unlabelled", lambda i, c: {"x": c.random(), "y": None if i in (2, 20, 21) else label(c, "a", "b")})
    return text(rows).encode()


def dated_target() -> bytes:
    rows = made("dated", lambda i, c: {"x": c.random(), "y": day(i).isoformat()})
    return text(rows).encode()


def named_target() -> bytes:
    rows = made("named", lambda i, c: {"x": c.random(), "y": f"person {i}"})
    return text(rows).encode()


def one_class() -> bytes:
    return text(made("one", lambda i, c: {"x": c.random(), "y": "yes"})).encode()


def imbalanced() -> bytes:
    def row(i: int, c: random.Random) -> dict[str, Any]:
        rare = i % 100 == 50
        return {
            "a": round(c.gauss(6 if rare else 0, 1), 3),
            "b": round(c.gauss(-6 if rare else 0, 1), 3),
            "kind": "rare" if rare else label(c, "x", "y"),
        }

    return text(made("imbalanced", row, 500)).encode()


def wide() -> bytes:
    rows = made("wide", lambda i, c: {**{f"f{j}": round(c.gauss(0, 1), 3) for j in range(60)}, "y": label(c, "a", "b")})
    return text(rows).encode()


def constant() -> bytes:
    rows = made(
        "constant", lambda i, c: {"x": c.random(), "unit": "kg", "version": 3, "empty": None, "y": label(c, "a", "b")}
    )
    return text(rows).encode()


def identifiers() -> bytes:
    rows = made(
        "ids",
        lambda i, c: {
            "uuid": f"{c.getrandbits(32):08x}-{c.getrandbits(16):04x}-4000-8000-{c.getrandbits(48):012x}",
            "customer_id": c.randint(100_000, 999_999),
            "row_no": i + 1,
            "plan": label(c, "free", "pro"),
            "visits": c.randint(0, 99),
            "left": label(c, "yes", "no"),
        },
    )
    return text(rows).encode()


def money_target() -> bytes:
    rows = made(
        "money",
        lambda i, c: {
            "Zimmer": german(c.uniform(1, 7), 1),
            "Lage": label(c, "gut", "mittel"),
            "Miete": german(c.uniform(300, 4000)),
        },
    )
    return text(rows, ";").encode()


def accounting() -> bytes:
    rows = made(
        "accounting",
        lambda i, c: {
            "profit": quoted(f"({c.randint(1, 9)},{c.randint(100, 999)}.50)")
            if i % 3
            else quoted(f"{c.randint(1, 9)},{c.randint(100, 999)}.25"),
            "change": f"{c.randint(1, 90)}-" if i % 4 == 0 else str(c.randint(1, 90)),
            "audited": label(c, "yes", "no"),
        },
    )
    return text(rows).encode()


def no_names() -> bytes:
    return text(made("none", lambda i, c: {"x": round(c.random(), 3), "y": c.randint(0, 1)})).split("\n", 1)[1].encode()


def answers() -> bytes:
    rows = made(
        "answers",
        lambda i, c: {
            "smoker": label(c, "Ja", "Nein"),
            "age group": label(c, "18-24", "25-34", "65+"),
            "vote": label(c, "A", "B"),
        },
    )
    return text(rows).encode()


def log() -> bytes:
    rows = made(
        "log",
        lambda i, c: {
            "time": f"{day(i).isoformat()} 12:{i:02d}:00",
            "ms": c.randint(1, 900),
            "path": label(c, "/", "/about", "/cart"),
            "status": label(c, "200", "404", "500"),
        },
    )
    return text(rows).encode()


# Other formats


def weather() -> Rows:
    return made(
        "weather",
        lambda i, c: {
            "day": day(i).isoformat(),
            "temp": round(c.gauss(10, 5), 1),
            "sky": label(c, "clear", "rain"),
            "wind": None if i % 8 == 0 else c.randint(0, 9),
            "ok": label(c, "yes", "no"),
        },
    )


def lines(rows: Rows) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def by_columns(rows: Rows) -> bytes:
    return json.dumps({name: {str(i): row[name] for i, row in enumerate(rows)} for name in rows[0]}).encode()


def workbook(sheets: dict[str, Iterable[Iterable[Any]]]) -> bytes:
    book = openpyxl.Workbook()
    book.remove(book.active)
    for name, rows in sheets.items():
        sheet = book.create_sheet(name)
        for row in rows:
            sheet.append(list(row))
    book.properties.created = book.properties.modified = datetime.datetime(2024, 1, 1)
    content = io.BytesIO()
    book.save(content)
    return content.getvalue()


def sales() -> bytes:
    rows = made(
        "sales",
        lambda i, c: {
            "date": day(i),
            "units": c.randint(1, 50),
            "price": round(c.uniform(1, 9), 2),
            "region": label(c, "north", "south"),
            "note": None,
            "returned": label(c, "yes", "no"),
        },
    )
    table = [list(rows[0]), *(list(row.values()) for row in rows)]
    return workbook({"Sheet1": table})


def two_sheets() -> bytes:
    rows = made(
        "sheets", lambda i, c: {"x": c.random(), "mixed": "n/a" if i == 4 else c.randint(0, 9), "y": label(c, "a", "b")}
    )
    return workbook(
        {"About": [["read me"], ["nothing to see"]], "Data": [list(rows[0]), *(list(row.values()) for row in rows)]}
    )


def flights() -> bytes:
    c = rng("flights")
    table = pa.table(
        {
            "leaves": pa.array(
                [datetime.datetime(2024, 1, 1) + datetime.timedelta(hours=7 * i) for i in range(N)],
                pa.timestamp("ms", "UTC"),
            ),
            "carrier": pa.array([label(c, "AA", "BA", "LH") for _ in range(N)]).dictionary_encode(),
            "fare": pa.array([Decimal(c.randint(1000, 99999)) / 100 for _ in range(N)], pa.decimal128(9, 2)),
            "miles": pa.array([c.randint(100, 9000) for _ in range(N)], pa.uint16()),
            "late": pa.array([c.random() < 0.4 for _ in range(N)]),
        }
    )
    sink = io.BytesIO()
    pyarrow.parquet.write_table(table, sink)
    return sink.getvalue()


def nested() -> bytes:
    c = rng("nested")
    table = pa.table(
        {
            "tags": [["a", "b"][: c.randint(0, 2)] for _ in range(N)],
            "place": [{"lat": c.random(), "lon": c.random()} for _ in range(N)],
            "photo": pa.array([b"\x89PNG"] * N),
            "x": [c.random() for _ in range(N)],
            "y": [label(c, "a", "b") for _ in range(N)],
        }
    )
    sink = io.BytesIO()
    pyarrow.parquet.write_table(table, sink)
    return sink.getvalue()


def sensors() -> bytes:
    c = rng("sensors")
    table = pa.table(
        {
            "volt": pa.array([None if i % 9 == 0 else c.gauss(5, 1) for i in range(N)], pa.float32()),
            "on": [c.random() < 0.5 for _ in range(N)],
            "level": [c.gauss(0, 1) for _ in range(N)],
        }
    )
    sink = io.BytesIO()
    pyarrow.feather.write_feather(table, sink, compression="uncompressed")
    return sink.getvalue()


def arrays() -> bytes:
    generator = np.random.default_rng(0)
    sink = io.BytesIO()
    np.savez(sink, pixels=generator.integers(0, 16, (N, 2, 2)), digit=generator.integers(0, 10, N))
    return sink.getvalue()


def zipped(name: str, content: bytes) -> bytes:
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(zipfile.ZipInfo(name, (2024, 1, 1, 0, 0, 0)), content)
    return sink.getvalue()


FILES: dict[str, Callable[[], bytes]] = {
    "bank.csv": bank,
    "wine.csv": wine,
    "german-sales.csv": german_sales,
    "german-numbers.csv": german_numbers,
    "french.csv": french,
    "us-housing.csv": us_housing,
    "swiss.csv": swiss,
    "excel-sep.csv": excel_sep,
    "unicode-text.txt": unicode_text,
    "utf-16-le.csv": utf16_le,
    "iris.tsv": iris,
    "pipes.dat": pipes,
    "titanic.csv": titanic,
    "adult.csv": adult,
    "churn.csv": churn,
    "percent.csv": percent,
    "stray.csv": stray,
    "written-dates.csv": written_dates,
    "ambiguous-dates.csv": ambiguous_dates,
    "survey.csv": survey,
    "own-weight.csv": own_weight,
    "pandas-index.csv": pandas_index,
    "trailing.csv": trailing,
    "windows.csv": windows,
    "doubled-quotes.csv": doubled_quotes,
    "escaped.csv": escaped,
    "single-quoted.csv": single_quoted,
    "ragged.csv": ragged,
    "unlabelled.csv": unlabelled,
    "dated-target.csv": dated_target,
    "named-target.csv": named_target,
    "one-class.csv": one_class,
    "imbalanced.csv": imbalanced,
    "wide.csv": wide,
    "constant.csv": constant,
    "identifiers.csv": identifiers,
    "money-target.csv": money_target,
    "accounting.csv": accounting,
    "no-names.csv": no_names,
    "answers.csv": answers,
    "log.csv.gz": lambda: gzip.compress(log(), mtime=0),
    "log.csv.bz2": lambda: bz2.compress(log()),
    "log.csv.zst": lambda: pa.Codec("zstd").compress(log(), asbytes=True),
    "log.zip": lambda: zipped("log.csv", log()),
    "log": log,
    "weather.ndjson": lambda: lines(weather()),
    "weather.jsonl.gz": lambda: gzip.compress(lines(weather()), mtime=0),
    "weather.json": lambda: json.dumps(weather(), indent=2).encode(),
    "weather-columns.json": lambda: by_columns(weather()),
    "weather-wrapped.json": lambda: json.dumps({"source": "station 7", "rows": weather()}).encode(),
    "broken.ndjson": lambda: lines(weather()).replace(b'"sky"', b'"sky', 1),
    "sales.xlsx": sales,
    "two-sheets.xlsx": two_sheets,
    "flights.parquet": flights,
    "nested.parquet": nested,
    "sensors.feather": sensors,
    "arrays.npz": arrays,
}

if __name__ == "__main__":
    for name, content in FILES.items():
        (HERE / name).write_bytes(content())
