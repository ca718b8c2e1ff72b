# The menu. What must hold is a test; these are shortcuts.

# List the recipes.
default:
    @just --list

# Start a server on loopback.
serve *arguments:
    cargo run --release -- serve {{arguments}}

# One file that runs: target/release/tidebox.
build:
    cargo build --release

# Every test.
test *arguments:
    cargo test --workspace {{arguments}}

# What a reviewer would say first: format, lints, documentation.
lint:
    cargo fmt --all --check
    cargo clippy --workspace --all-targets -- -D warnings
    RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --document-private-items

# Format everything.
fmt:
    cargo fmt --all

# Licences, advisories and banned crates (needs cargo-deny).
deny:
    cargo deny check

# Accept or refuse changed snapshots (needs cargo-insta).
snapshots:
    cargo insta review

# Measure a running server.
bench *arguments:
    cargo run --release -- bench {{arguments}}

# All that continuous integration does.
ci:
    .ci/run

# All suites whole: before a release, and after a change of a provider.
full:
    .ci/full
