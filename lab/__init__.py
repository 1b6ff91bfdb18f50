"""The laboratory of Holdfast: measurements of speed and published tables.

It is a package of its own, which adds the commands `bench` and `reproduce` and the sections `benches` and `recipes` to
those of Holdfast.
"""
