//! The embedded engine: SQLite in WAL mode, one connection that writes.

mod admission;
mod audit;
mod builds;
mod built;
mod connections;
mod database;
mod egress;
mod ended;
mod keys;
mod list;
mod maintenance;
mod placement;
mod policies;
mod pool;
mod prepare;
mod quotas;
mod rows;
mod schema;
mod secrets;
mod snapshots;
mod space;
mod templates;
mod terms;
#[cfg(test)]
mod test;
mod transactions;
mod workers;

pub use database::Sqlite;
