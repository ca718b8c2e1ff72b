//! Users of a box.

use serde::{Deserialize, Serialize};

/// Header with the user that a request about files is carried out as: `name`, `uid`, `name:group` or
/// `uid:gid` as JSON, encoded like [`crate::REQUEST_HEADER`]. Without it that is the user of the image.
pub const USER_HEADER: &str = "tidebox-user";

/// A request for an account.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccountOf {
    /// `name`, `uid`, `name:group` or `uid:gid`; `None` for the user of commands that name none.
    #[serde(default)]
    pub user: Option<String>,
}

/// An account of the box, as its `/etc/passwd` has it now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Account {
    /// Name of the user; its number as text if it has none.
    pub name: String,
    /// Number of the user.
    pub uid: u32,
    /// Number of its group.
    pub gid: u32,
    /// Home directory; absolute.
    pub home: String,
    /// True if commands and requests about files can be carried out as the agent's own user only,
    /// whatever user they name.
    pub is_only: bool,
}
