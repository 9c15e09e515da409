"""Reads the indexed data sets that trireme writes."""
import struct


def read_set(prefix):
    """The documents of a data set, each a list of sequences."""
    with open(prefix + ".idx", "rb") as file:
        index = file.read()
    width = {4: "i", 8: "H"}[index[17]]
    count, documents = struct.unpack_from("<QQ", index, 18)
    lengths = struct.unpack_from(f"<{count}i", index, 34)
    bounds = struct.unpack_from(f"<{documents}q", index, 34 + 12 * count)
    with open(prefix + ".bin", "rb") as file:
        data = file.read()
    tokens = struct.unpack(f"<{sum(lengths)}{width}", data)
    at, sequences = 0, []
    for length in lengths:
        sequences.append(list(tokens[at:at + length]))
        at += length
    return [sequences[a:b] for a, b in zip(bounds, bounds[1:])]
