//! Care for the files and the stored times.

use async_trait::async_trait;

use super::database::Sqlite;
use super::space;
use crate::error::Result;
use crate::transactions::Maintenance;

#[async_trait]
impl Maintenance for Sqlite {
    async fn check(&self) -> Result<()> {
        sqlx::query("SELECT id FROM store").fetch_one(&self.readers).await?;
        // Takes the write lock, and releases it at once.
        self.writer.acquire().await?.begin().await?.rollback().await?;
        Ok(())
    }

    async fn shift_times(&self, by_ms: i64) -> Result<u64> {
        let mut writer = self.writer.acquire().await?;
        let mut tx = writer.begin().await?;
        let moved = sqlx::query(
            "UPDATE sandboxes SET expires_at = expires_at + $1 WHERE state IN ('creating', 'running', 'paused')",
        )
        .bind(by_ms)
        .execute(&mut *tx)
        .await?
        .rows_affected();
        for sql in [
            "UPDATE leases SET expires_at = expires_at + $1",
            "UPDATE workers SET last_heartbeat = last_heartbeat + $1",
            "UPDATE held SET lease_until = lease_until + $1",
        ] {
            sqlx::query(sql).bind(by_ms).execute(&mut *tx).await?;
        }
        tx.commit().await?;
        Ok(moved)
    }

    async fn give_back(&self) -> Result<bool> {
        space::keep_reserve(&self.path);
        space::give_back(&self.writer, &self.path).await
    }

    async fn free_reserve(&self) -> bool {
        space::free_reserve(&self.path)
    }

    async fn close(&self) {
        self.searches.close().await;
        self.readers.close().await;
        self.writer.close().await;
    }
}
