-- Whether the image's entry point is started; NULL where the template does not say.
ALTER TABLE templates ADD COLUMN entrypoint INTEGER CHECK (entrypoint IN (0, 1));
