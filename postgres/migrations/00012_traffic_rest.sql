-- +goose Up
ALTER TABLE traffic_rest DROP took; -- nobody reads it

-- +goose Down
ALTER TABLE traffic_rest ADD took bigint NOT NULL DEFAULT 0;
ALTER TABLE traffic_rest ALTER took DROP DEFAULT;
