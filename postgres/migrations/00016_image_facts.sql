-- +goose Up
-- What is known of an image beside its content, and who may use it.
ALTER TABLE image
    ADD COLUMN family       text NOT NULL DEFAULT '',
    ADD COLUMN version      text NOT NULL DEFAULT '',
    ADD COLUMN architecture text NOT NULL DEFAULT 'amd64' CHECK (architecture IN ('amd64', 'arm64')),
    ADD COLUMN min_disk     bigint NOT NULL DEFAULT 0 CHECK (min_disk >= 0), -- bytes
    ADD COLUMN drivers      text[] NOT NULL DEFAULT '{}',
    ADD COLUMN visibility   text NOT NULL DEFAULT 'public' CHECK (visibility IN ('public', 'community', 'project')),
    ADD COLUMN projects     text[] NOT NULL DEFAULT '{}',
    ADD CHECK (visibility <> 'project' OR cardinality(projects) > 0);

-- What each name has meant: an order goes on with the content, and what that asks of a machine, that it was placed with.
CREATE TABLE image_version (
    name         text NOT NULL,
    digest       text NOT NULL,
    size         bigint NOT NULL,
    default_user text NOT NULL,
    bios         boolean NOT NULL,
    uefi         boolean NOT NULL,
    driver       boolean NOT NULL,
    created      timestamptz NOT NULL,
    family       text NOT NULL,
    version      text NOT NULL,
    architecture text NOT NULL,
    min_disk     bigint NOT NULL,
    drivers      text[] NOT NULL,
    visibility   text NOT NULL,
    projects     text[] NOT NULL,
    PRIMARY KEY (name, digest)
);
INSERT INTO image_version SELECT name, digest, size, default_user, bios, uefi, driver, created, family, version, architecture, min_disk, drivers, visibility, projects FROM image;

-- +goose Down
DROP TABLE image_version;
ALTER TABLE image DROP COLUMN family, DROP COLUMN version, DROP COLUMN architecture, DROP COLUMN min_disk, DROP COLUMN drivers, DROP COLUMN visibility, DROP COLUMN projects;
