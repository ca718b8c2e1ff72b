//! A bounded number of connections to the file, taken in order of arrival.
//!
//! sqlx's own pool asks a connection that comes back whether it is alive, which is a round trip to its
//! thread, and the next statement waits for it. A connection to a local file does not break, and each of
//! its statements runs to its end, so these come back as they are.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::{self, BoxStream, StreamExt};
use parking_lot::Mutex;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection, SqliteQueryResult, SqliteRow};
use sqlx::{Connection as _, Either, Error, Execute, Executor, SqlStr, Sqlite, Transaction};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Deadline for a connection to come free.
const WAIT: Duration = Duration::from_secs(30);

/// Connections to one file, which are opened when they are first needed.
#[derive(Clone)]
pub(super) struct Connections {
    options: Arc<SqliteConnectOptions>,
    free: Arc<Semaphore>,
    count: u32,
    idle: Arc<Mutex<Vec<SqliteConnection>>>,
}

/// A connection that is in use, until dropped.
pub(super) struct InUse {
    /// `Some` until dropped.
    connection: Option<SqliteConnection>,
    idle: Arc<Mutex<Vec<SqliteConnection>>>,
    _permit: OwnedSemaphorePermit,
}

impl Connections {
    /// Creates a set of at most `count` connections, none of which is open yet.
    pub(super) fn new(options: SqliteConnectOptions, count: u32) -> Self {
        Self { options: Arc::new(options), free: Arc::new(Semaphore::new(count as usize)), count, idle: Arc::default() }
    }

    /// Takes a connection, once one is free.
    ///
    /// # Errors
    /// [`Error::PoolTimedOut`] if none comes free in time, [`Error::PoolClosed`] after [`Self::close`], and
    /// those of opening one.
    pub(super) async fn acquire(&self) -> Result<InUse, Error> {
        let permit = tokio::time::timeout(WAIT, Arc::clone(&self.free).acquire_owned());
        let permit = permit.await.map_err(|_| Error::PoolTimedOut)?.map_err(|_| Error::PoolClosed)?;
        let idle = self.idle.lock().pop();
        let fit = match idle {
            Some(mut connection) => is_fit(&mut connection).await?.then_some(connection),
            None => None,
        };
        let connection = match fit {
            Some(connection) => connection,
            None => SqliteConnection::connect_with(&self.options).await?,
        };
        Ok(InUse { connection: Some(connection), idle: Arc::clone(&self.idle), _permit: permit })
    }

    /// Closes all connections, once those in use are back.
    pub(super) async fn close(&self) {
        let Ok(_all) = self.free.acquire_many(self.count).await else { return };
        self.free.close();
        let idle = std::mem::take(&mut *self.idle.lock());
        for connection in idle {
            if let Err(error) = connection.close().await {
                tracing::warn!(%error, "cannot close the store's file");
            }
        }
    }
}

impl InUse {
    /// Begins a transaction that writes, which is undone if it is dropped.
    ///
    /// # Errors
    /// Those of the statement.
    pub(super) async fn begin(&mut self) -> Result<Transaction<'_, Sqlite>, Error> {
        // IMMEDIATE: a deferred transaction that becomes a writer can fail at once.
        self.begin_with("BEGIN IMMEDIATE").await
    }
}

/// Returns whether a connection can begin a transaction. On a full disk SQLite ends a
/// transaction without sqlx noticing, which then takes it for open for ever.
async fn is_fit(connection: &mut SqliteConnection) -> Result<bool, Error> {
    if connection.is_in_transaction() {
        // The end of the last transaction may still be under way.
        connection.ping().await?;
    }
    Ok(!connection.is_in_transaction())
}

impl Drop for InUse {
    fn drop(&mut self) {
        self.idle.lock().extend(self.connection.take());
    }
}

impl Deref for InUse {
    type Target = SqliteConnection;

    fn deref(&self) -> &SqliteConnection {
        self.connection.as_ref().expect("it is in use")
    }
}

impl DerefMut for InUse {
    fn deref_mut(&mut self) -> &mut SqliteConnection {
        self.connection.as_mut().expect("it is in use")
    }
}

impl fmt::Debug for Connections {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connections").field("count", &self.count).finish_non_exhaustive()
    }
}

/// Runs each statement on a connection that is taken for it alone.
impl<'c> Executor<'c> for &'_ Connections {
    type Database = Sqlite;

    fn execute<'e, 'q: 'e, E>(self, query: E) -> BoxFuture<'e, Result<SqliteQueryResult, Error>>
    where
        'c: 'e,
        E: 'q + Execute<'q, Sqlite>,
    {
        let connections = self.clone();
        Box::pin(async move { connections.acquire().await?.execute(query).await })
    }

    fn fetch_many<'e, 'q: 'e, E>(self, query: E) -> BoxStream<'e, Result<Either<SqliteQueryResult, SqliteRow>, Error>>
    where
        'c: 'e,
        E: 'q + Execute<'q, Sqlite>,
    {
        let connections = self.clone();
        // Every statement of the store has a bound on its rows.
        let rows = async move {
            match connections.acquire().await {
                Ok(mut connection) => connection.fetch_many(query).collect().await,
                Err(error) => vec![Err(error)],
            }
        };
        stream::once(rows).flat_map(stream::iter).boxed()
    }

    fn fetch_optional<'e, 'q: 'e, E>(self, query: E) -> BoxFuture<'e, Result<Option<SqliteRow>, Error>>
    where
        'c: 'e,
        E: 'q + Execute<'q, Sqlite>,
    {
        let connections = self.clone();
        // All of it: sqlx ends a statement at its first row, and then drops the error of the commit.
        Box::pin(async move { Ok(connections.acquire().await?.fetch_all(query).await?.into_iter().next()) })
    }

    fn prepare_with<'e>(
        self,
        sql: SqlStr,
        parameters: &'e [sqlx::sqlite::SqliteTypeInfo],
    ) -> BoxFuture<'e, Result<sqlx::sqlite::SqliteStatement, Error>>
    where
        'c: 'e,
    {
        let connections = self.clone();
        Box::pin(async move { connections.acquire().await?.prepare_with(sql, parameters).await })
    }
}
