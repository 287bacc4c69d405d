"""Files of runs and people: stored as they stream, by their content, within the scope's room.

The bytes of a file are not in the database; what they are and whose is. So no transaction covers
both, and this is the order that keeps them together:

1. *Announce.* A name is taken in the database (a blob, `arriving`), committed before the first byte
   is written under it. A name is never given again.
2. *Write.* The bytes go to their place (`store/blobs.py`), whole and durable, or not at all.
3. *Store.* One transaction, under the lock of the scope's room: the blob becomes `stored`, its size
   is taken from the room, the artifact names it. If the scope has these bytes already, the artifact
   names those, and the new ones are discarded.
4. *Discard.* With the last artifact that names it, in the same transaction, a blob becomes
   `discarded`. The foreign key of an artifact holds the blob's state: the database refuses this
   while anybody names it or is about to.
5. *Collect.* Only what is `discarded` in a committed transaction is removed, then its row.

Who dies between 1 and 3 leaves an `arriving` blob, which is given up when nothing was heard of it
for some minutes; who comes to store it after that is told so. Bytes that no row knows can only be
there after a database was restored: they are found by listing the place, and removed by order only.
"""
