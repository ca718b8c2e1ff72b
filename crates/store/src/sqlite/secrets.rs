//! Secrets, and the authorities of sandboxes.

use domain::{OwnerId, SandboxId, SecretBinding, SecretForm, SecretName, Target, Timestamp};
use serde::{Deserialize, Serialize};
use sqlx::Row;
use sqlx::sqlite::SqliteRow;

use super::super::error::{Error, Result};
use super::super::secrets::{NewSecret, StoredSecret};
use super::connections::Connections;
use super::rows::ms;

const COLUMNS: &str = "name, binding, sealed, created_at, updated_at";

/// A binding, as stored.
#[derive(Debug, Serialize, Deserialize)]
struct Binding {
    hosts: Vec<String>,
    header: String,
    form: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    owners: Vec<String>,
}

fn text(binding: &SecretBinding) -> String {
    let SecretBinding { hosts, header, form, owners } = binding;
    let stored = Binding {
        hosts: hosts.iter().map(ToString::to_string).collect(),
        header: header.clone(),
        form: form.to_string(),
        owners: owners.iter().map(|owner| owner.as_str().to_owned()).collect(),
    };
    serde_json::to_string(&stored).expect("texts are JSON")
}

fn binding(text: &str) -> Option<SecretBinding> {
    let Binding { hosts, header, form, owners } = serde_json::from_str(text).ok()?;
    let hosts = hosts.iter().map(|text| Target::parse(text).ok()).collect::<Option<_>>()?;
    let owners = owners.into_iter().map(OwnerId::stored).collect();
    Some(SecretBinding { hosts, header, form: SecretForm::parse(&form)?, owners })
}

fn read(row: &SqliteRow) -> Result<StoredSecret> {
    let corrupt = || Error::Corrupt("a secret".to_owned());
    Ok(StoredSecret {
        name: SecretName::parse(row.try_get("name")?).ok_or_else(corrupt)?,
        binding: binding(row.try_get("binding")?).ok_or_else(corrupt)?,
        sealed: row.try_get("sealed")?,
        created_at: crate::clock::from_ms(row.try_get("created_at")?),
        updated_at: crate::clock::from_ms(row.try_get("updated_at")?),
    })
}

pub(super) async fn save(
    pool: &Connections,
    new: &NewSecret,
    at: Timestamp,
    rows_max: u64,
) -> Result<Option<StoredSecret>> {
    let sql = format!(
        "INSERT INTO secrets ({COLUMNS}) SELECT $1, $2, $3, $4, $4 \
         WHERE (SELECT COUNT(*) FROM secrets) < $5 OR EXISTS (SELECT 1 FROM secrets WHERE name = $1) \
         ON CONFLICT (name) DO UPDATE SET binding = $2, sealed = $3, updated_at = $4 RETURNING {COLUMNS}"
    );
    let row = sqlx::query(sqlx::AssertSqlSafe(sql))
        .bind(new.name.as_str())
        .bind(text(&new.binding))
        .bind(&new.sealed)
        .bind(ms(at))
        .bind(i64::try_from(rows_max).unwrap_or(i64::MAX))
        .fetch_optional(pool)
        .await?;
    row.map(|row| read(&row)).transpose()
}

pub(super) async fn get(pool: &Connections, name: &SecretName) -> Result<Option<StoredSecret>> {
    let sql = format!("SELECT {COLUMNS} FROM secrets WHERE name = $1");
    let row = sqlx::query(sqlx::AssertSqlSafe(sql)).bind(name.as_str()).fetch_optional(pool).await?;
    row.map(|row| read(&row)).transpose()
}

pub(super) async fn list(pool: &Connections, after: Option<&SecretName>, limit: u32) -> Result<Vec<StoredSecret>> {
    let sql = format!("SELECT {COLUMNS} FROM secrets WHERE name > $1 ORDER BY name LIMIT $2");
    let query = sqlx::query(sqlx::AssertSqlSafe(sql)).bind(after.map_or("", SecretName::as_str)).bind(limit);
    query.fetch_all(pool).await?.iter().map(read).collect()
}

pub(super) async fn delete(pool: &Connections, name: &SecretName) -> Result<bool> {
    let done = sqlx::query("DELETE FROM secrets WHERE name = $1").bind(name.as_str()).execute(pool).await?;
    Ok(done.rows_affected() == 1)
}

pub(super) async fn authority(pool: &Connections, id: &SandboxId) -> Result<Option<Vec<u8>>> {
    let sealed = sqlx::query_scalar::<_, Option<Vec<u8>>>("SELECT authority FROM sandboxes WHERE id = $1");
    Ok(sealed.bind(id.as_str()).fetch_optional(pool).await?.flatten())
}

pub(super) async fn set_authority(pool: &Connections, id: &SandboxId, sealed: &[u8]) -> Result<Option<Vec<u8>>> {
    let stored = sqlx::query_scalar(
        "UPDATE sandboxes SET authority = COALESCE(authority, $1) \
         WHERE id = $2 AND state IN ('creating', 'running', 'paused') RETURNING authority",
    );
    Ok(stored.bind(sealed).bind(id.as_str()).fetch_optional(pool).await?)
}
