-- Whether the operation's effect has code of the app's own to run when it is released. A process that
-- does not know the effect then leaves the release to one that does. Of operations from before this
-- nobody knows; they are released as they were.
ALTER TABLE operation ADD COLUMN has_released_hook boolean NOT NULL DEFAULT false;
