"""In what clients differ that an algorithm needs to be alike, in a line that says the way out."""

from collections.abc import Sequence
from typing import Literal

from hetfl_flwr.server.member import Member
from hetfl_flwr.wire.naming import called

Kind = Literal["class", "column"]
"""What has a name that clients must agree on."""


def names_of(member: Member, kind: Kind) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return digests and names of a client's classes or columns."""
    if kind == "class":
        return member.class_digests, member.class_names
    return member.input_digests, member.input_names


def different_names(kind: Kind, first: Member, other: Member) -> str:
    """Return in a line what two clients call by different names, and the way out."""
    (digests, names), (their_digests, their_names) = names_of(first, kind), names_of(other, kind)
    here, there = (called(member.client_id, member.name) for member in (first, other))
    if kind == "column" and first.vocabulary:
        return (
            f"{here} and {there} have other words for the same tokens, for vocabulary = 'shared:{first.vocabulary}' "
            f"numbers the words of each data set by itself: set vocabulary = 'hashed:{first.vocabulary}'"
        )
    differing = [number for number, pair in enumerate(zip(digests, their_digests, strict=False)) if pair[0] != pair[1]]
    number = differing[0] if differing and len(digests) == len(their_digests) else None
    if number is None or len(digests) == 1:
        said = f"{here} and {there} have different names of {_PLURAL[kind]}"
    elif number < min(len(names), len(their_names)):
        said = f"{here}'s {kind} {number} is '{names[number]}', {there}'s is '{their_names[number]}'"
    else:
        said = f"{here}'s {kind} {number} has another name than {there}'s (each node's log says its own)"
    return f"{said}: {_REMEDIES[kind]}"


def lacking(members: Sequence[Member]) -> str:
    """Return which columns of a table one client has and another lacks, and the way out; empty where nobody knows."""
    said = _columns_of_one(members[0], members[-1])
    way_out = "name these in ignore-columns, numeric-columns or categorical-columns on all of them"
    return f"; {said}: {way_out}" if said else ""


def unlike_columns(members: Sequence[Member]) -> str:
    """Return a note where two clients have different columns, as a misspelt name makes them; else nothing."""
    for member in members[1:]:
        if said := _columns_of_one(members[0], member):
            return f"clients have different columns: {said}: write them alike where they mean the same"
    return ""


def _columns_of_one(first: Member, other: Member) -> str:
    ours, theirs = first.input_digests, other.input_digests
    if min(len(ours), len(theirs)) < 2 or first.vocabulary or other.vocabulary:
        return ""
    return ", and ".join(
        f"client {one.client_id} alone has {_columns_beyond(one, known)}"
        for one, known in ((first, {*theirs}), (other, {*ours}))
        if {*one.input_digests} - known
    )


def _columns_beyond(member: Member, known: set[str]) -> str:
    """Return what a client's columns are called that are not among some known ones."""
    numbers = [number for number, digest in enumerate(member.input_digests) if digest not in known]
    if len(member.input_names) == len(member.input_digests):
        shown = ", ".join(f"'{member.input_names[number]}'" for number in numbers[:5])
        return shown + (f" and {len(numbers) - 5} more" if len(numbers) > 5 else "")
    return f"columns {listed(numbers)} (its log says their names)"


_PLURAL = {"class": "classes", "column": "columns"}

_REMEDIES = {
    "class": "give all the same names in the same order, or set classes = 'NAME,NAME,...' on each",
    "column": "give all tables the same columns, with the same categories, in the same order; see ignore-columns",
}


def listed(numbers: Sequence[int]) -> str:
    """Return numbers in a line: the first five, and how many more."""
    return ", ".join(map(str, numbers[:5])) + (f" and {len(numbers) - 5} more" if len(numbers) > 5 else "")
