//! Users that calls of the data plane name.

use providers::Account;

use super::in_box::USER;
use crate::control::{Control, Error};
use crate::http::error::{ApiError, Result, RpcCode, rpc};

/// Longest name of a user, in bytes.
const NAME_BYTES_MAX: usize = 256;

/// User that a call acts as.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Actor {
    /// User for commands and file operations; `None` for the sandbox's own.
    pub user: Option<String>,
    /// Name of the user.
    pub name: String,
    /// Home directory; absolute.
    pub home: String,
    /// Directory that relative paths begin at; absolute.
    pub workdir: String,
    /// True if the sandbox has no other user, so that the name is one for show.
    pub is_only: bool,
}

/// Finds the user that a call acts as: the one that it names, else that of the sandbox's template, else [`USER`]. Where the image of the sandbox has no [`USER`], the sandbox's own user
/// stands for it, because SDKs name it for callers who chose none.
///
/// # Errors
/// `unauthenticated` for one that the sandbox does not have.
pub async fn actor(control: &Control, id: &str, name: Option<&str>) -> Result<Actor> {
    let defaults = control.process_defaults(id).await;
    let name = name.or(defaults.user.as_deref()).unwrap_or(USER);
    let actor = named(control, id, name).await?;
    Ok(Actor { workdir: defaults.workdir.unwrap_or_else(|| actor.home.clone()), ..actor })
}

async fn named(control: &Control, id: &str, name: &str) -> Result<Actor> {
    if name.len() > NAME_BYTES_MAX || name.contains([':', '\0']) {
        return Err(unknown(name));
    }
    match control.account(id, Some(name)).await {
        Ok(account) => Ok(Actor::of(account)),
        Err(Error::Invalid(_)) if name == USER => {
            let account = control.account(id, None).await?;
            Ok(Actor { user: None, ..Actor::of(account) })
        }
        Err(Error::Invalid(_)) => Err(unknown(name)),
        // The provider knows no users: it has to take the name as it is.
        Err(Error::NotSupported(_)) => Ok(Actor::assumed(name)),
        Err(error) => Err(error.into()),
    }
}

fn unknown(name: &str) -> ApiError {
    let name: String = name.chars().take(NAME_BYTES_MAX).collect();
    rpc(RpcCode::Unauthenticated, format!("invalid username: the sandbox has no user {name:?}"))
}

impl Actor {
    fn of(account: Account) -> Actor {
        let Account { name, home, is_only, .. } = account;
        Actor { user: (!is_only).then(|| name.clone()), name, workdir: home.clone(), home, is_only }
    }

    fn assumed(name: &str) -> Actor {
        let home = if name == "root" { "/root".to_owned() } else { format!("/home/{name}") };
        Actor { user: Some(name.to_owned()), name: name.to_owned(), workdir: home.clone(), home, is_only: false }
    }

    /// Returns the absolute path that a path of a call means: it may be relative to the working directory of
    /// the template, else to the home, or begin with `~`.
    ///
    /// # Errors
    /// `invalid_argument` for the home of another user.
    pub fn absolute(&self, path: &str) -> Result<String> {
        if path.starts_with('/') {
            return Ok(path.to_owned());
        }
        let (base, rest) = match path.strip_prefix('~') {
            None => (&self.workdir, path),
            Some("") => (&self.home, ""),
            Some(rest) => (
                &self.home,
                rest.strip_prefix('/').ok_or_else(|| {
                    let fault = format!("`{path}`: only the user's own home can be written as `~`");
                    rpc(RpcCode::InvalidArgument, fault)
                })?,
            ),
        };
        Ok(match rest {
            "" => base.clone(),
            rest => format!("{}/{rest}", base.trim_end_matches('/')),
        })
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn paths_are_relative_to_the_home() {
        let actor = Actor::assumed("ann");
        for (path, expected) in [
            ("/a/b", Some("/a/b")),
            ("a/b", Some("/home/ann/a/b")),
            ("", Some("/home/ann")),
            ("~", Some("/home/ann")),
            ("~/", Some("/home/ann")),
            ("~/a", Some("/home/ann/a")),
            ("~bob", None),
            ("~bob/a", None),
        ] {
            assert_eq!(actor.absolute(path).ok().as_deref(), expected, "{path}");
        }
        assert_eq!(Actor { workdir: "/".to_owned(), ..actor.clone() }.absolute("a").unwrap(), "/a");
        let elsewhere = Actor { workdir: "/srv".to_owned(), ..actor };
        assert_eq!(elsewhere.absolute("").unwrap(), "/srv");
        assert_eq!(elsewhere.absolute("~/a").unwrap(), "/home/ann/a");
    }
}
