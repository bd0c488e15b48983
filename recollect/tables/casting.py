"""A column in another type, where no value becomes another by it."""

from decimal import Decimal, InvalidOperation

import pyarrow as pa

from recollect.tables.values import has_codes, is_numeric, is_text


def cast_unchanged(column: pa.ChunkedArray, wanted: pa.DataType) -> pa.ChunkedArray:
    """The same values in the wanted type; a `ValueError` if some would not be the same.

    Example:
        >>> cast_unchanged(pa.chunked_array([[1.0, 2.0]]), pa.int64()).to_pylist()
        [1, 2]
        >>> cast_unchanged(pa.chunked_array([[0.1, 2.0]]), pa.float32())
        Traceback (most recent call last):
        ValueError: values must stay the same, got some that float does not hold
    """
    if column.type == wanted:
        return column
    if not _alike(column.type, wanted):
        raise ValueError(f"values must stay what they are, got {column.type} for {wanted}")
    # Of decimals, pyarrow makes floats that are next to the nearest ones, but not of their digits.
    exact = column.cast(pa.string()) if _is_decimal_to_float(column.type, wanted) else column
    found = exact.cast(wanted)
    if not _holds(exact, found):
        raise ValueError(f"values must stay the same, got some that {wanted} does not hold")
    return found


def widened(kind: pa.DataType, later: pa.DataType, *, fractions: bool) -> pa.DataType:
    """The type, or one for what comes later, too, where the first values did not tell it.

    Args:
        kind: of the values so far; there may have been none.
        later: of those that come.
        fractions: whether whole numbers may have been such by chance, as in JSON.

    Example:
        >>> widened(pa.list_(pa.null()), pa.list_(pa.string()), fractions=False)
        ListType(list<item: string>)
    """
    types = pa.types
    if types.is_null(kind) or (fractions and kind == pa.int64() and later == pa.float64()):
        return later
    if types.is_struct(kind) and types.is_struct(later):
        others = {field.name: field.type for field in later}
        wider = [widened(f.type, others.get(f.name, f.type), fractions=fractions) for f in kind]
        return pa.struct([field.with_type(found) for field, found in zip(kind, wider, strict=True)])
    if types.is_list(kind) and types.is_list(later):
        items = widened(kind.value_type, later.value_type, fractions=fractions)
        return pa.list_(kind.value_field.with_type(items))
    return kind


def _alike(kind: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether a value of one type can mean the same in the other: 1 is neither a moment nor true."""
    types = pa.types
    if types.is_null(kind) or types.is_null(wanted):
        return True  # pyarrow makes nothing of something never
    if types.is_struct(kind) and types.is_struct(wanted):
        fields = {field.name: field.type for field in wanted}
        return all(_alike(field.type, fields.get(field.name, pa.null())) for field in kind)
    if _is_list(kind) and _is_list(wanted):
        return _alike(kind.value_type, wanted.value_type)
    meant = _meaning(kind), _meaning(wanted)
    return meant[0] == meant[1] or "text" in meant


def _is_decimal_to_float(kind: pa.DataType, wanted: pa.DataType) -> bool:
    return bool(pa.types.is_decimal(kind) and pa.types.is_floating(wanted))


def _is_list(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _meaning(kind: pa.DataType) -> str:
    """What values of a type mean: types of one meaning differ only in which values they have room for."""
    types = pa.types
    if types.is_dictionary(kind):
        return _meaning(kind.value_type)
    if types.is_boolean(kind):
        return "truth"
    if is_numeric(kind):
        return "number"
    if types.is_timestamp(kind) and kind.tz is not None:
        return f"moment in {kind.tz}"
    if types.is_timestamp(kind) or types.is_date(kind):
        return "date"
    if is_text(kind):
        return "text"
    for name in ("time", "duration", "binary", "large_binary", "fixed_size_binary"):
        if getattr(types, f"is_{name}")(kind):
            return name.rpartition("_")[2]
    return str(kind)


def _holds(column: pa.ChunkedArray, found: pa.ChunkedArray) -> bool:
    """Whether what was found says all that the column says."""
    if pa.types.is_null(column.type):
        return True
    if is_text(column.type) and not is_text(found.type):  # pyarrow reads text strictly, apart from what digits say
        return not is_numeric(found.type) or _same_numbers(column.cast(pa.string()), found.cast(pa.string()))
    try:
        back = found.cast(column.type)
    except pa.ArrowNotImplementedError:  # to what has had no type, within an object or a list
        return bool(column.to_pylist() == found.to_pylist())
    # No NaN equals another, though each is written alike.
    return bool(column.equals(back)) or str(column.to_pylist()) == str(back.to_pylist())


def _same_numbers(texts: pa.ChunkedArray, found: pa.ChunkedArray) -> bool:
    """Whether texts are the same numbers: 3.50 is 3.5, while 007 is a name."""
    pairs = zip(texts.to_pylist(), found.to_pylist(), strict=True)
    try:
        return not has_codes(texts) and all(a == b or a.lower() == b or Decimal(a) == Decimal(b) for a, b in pairs)
    except InvalidOperation:  # such as 0x1f
        return False
