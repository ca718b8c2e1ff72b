//! File work as the user of the image.
//!
//! The agent is root in the box. Its first thread takes the image's user as its effective user only
//! while a piece of work runs: between two pieces other requests have their turn. The kernel drops
//! the capabilities with the effective id and restores them with it. The ids are those of the thread
//! alone.

use std::future::Future;
use std::pin::Pin;
use std::process::abort;
use std::task::{Context, Poll};

use guest_protocol::Boot;
use rustix::io::Errno;
use rustix::process::{Gid, Uid, getgid, getgroups, getuid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

use crate::failure::{Result, invalid, reason};
use crate::users::{self, Ids};

/// User that file work is done as.
#[derive(Debug, Clone)]
pub(crate) struct Actor {
    /// `None` for the agent's own user.
    ids: Option<Ids>,
}

impl Actor {
    /// Returns the user `asked` for, else that of the image, as the box's files define it now.
    ///
    /// # Errors
    /// Invalid if the box has no such user; not supported for any but the agent's own user in a box with a
    /// single user.
    pub(crate) fn of(asked: Option<&str>, boot: &Boot) -> Result<Actor> {
        if asked.is_none() && users::of_image(boot).is_none() {
            return Ok(Actor { ids: None });
        }
        let own = (getuid().as_raw(), getgid().as_raw());
        let ids = users::resolve(asked, boot)?.ids.filter(|ids| (ids.uid, ids.gid) != own);
        Ok(Actor { ids })
    }

    /// Returns the agent's own user.
    pub(crate) fn own() -> Actor {
        Actor { ids: None }
    }

    /// Does `work` in one piece.
    ///
    /// # Errors
    /// Those of `work`; invalid if the agent cannot become the user.
    pub(crate) fn at_once<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let _turn = self.ids.as_ref().map(Turn::begin).transpose()?;
        work()
    }

    /// Does `work`, which may wait.
    ///
    /// # Errors
    /// Those of `work`; invalid if the agent cannot become the user.
    pub(crate) async fn run<T>(self, work: impl Future<Output = Result<T>>) -> Result<T> {
        match self.ids {
            None => work.await,
            Some(ids) => Acting { ids, work: Some(Box::pin(work)) }.await,
        }
    }
}

/// Work whose every step is done as the user, its drop included.
struct Acting<F> {
    ids: Ids,
    work: Option<Pin<Box<F>>>,
}

impl<T, F: Future<Output = Result<T>>> Future for Acting<F> {
    type Output = Result<T>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<T>> {
        let this = self.get_mut();
        let _turn = match Turn::begin(&this.ids) {
            Ok(turn) => turn,
            Err(failure) => return Poll::Ready(Err(failure)),
        };
        let Some(work) = &mut this.work else { return Poll::Pending };
        let polled = work.as_mut().poll(cx);
        if polled.is_ready() {
            this.work = None;
        }
        polled
    }
}

impl<F> Drop for Acting<F> {
    fn drop(&mut self) {
        // Dropping the work reverts what it began, also as the user. If the agent cannot become the
        // user, no step has run.
        if let (Some(work), Ok(_turn)) = (self.work.take(), Turn::begin(&self.ids)) {
            drop(work);
        }
    }
}

/// Guard while which this thread acts as the user. Its real id stays the agent's, so that the user's
/// processes can send it no signal.
struct Turn {
    groups: Vec<Gid>,
}

impl Turn {
    fn begin(ids: &Ids) -> Result<Turn> {
        Turn::take(ids).map_err(|errno| invalid(format!("the box cannot act as user {}: {}", ids.uid, reason(errno))))
    }

    fn take(ids: &Ids) -> Result<Turn, Errno> {
        let groups = getgroups()?;
        let theirs: Vec<Gid> = ids.groups.iter().map(|gid| Gid::from_raw(*gid)).collect();
        set_thread_groups(&theirs)?;
        // From here on the drop of the turn reverts the changes.
        let turn = Turn { groups };
        let uid = getuid();
        let gid = getgid();
        set_thread_res_gid(gid, Gid::from_raw(ids.gid), gid)?;
        set_thread_res_uid(uid, Uid::from_raw(ids.uid), uid)?;
        Ok(turn)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let uid = getuid();
        let gid = getgid();
        // The user first: its capabilities are needed for the other changes.
        let back = set_thread_res_uid(uid, uid, uid)
            .and_then(|()| set_thread_res_gid(gid, gid, gid))
            .and_then(|()| set_thread_groups(&self.groups));
        if back.is_err() {
            // An agent with the wrong ids must not serve another request.
            abort();
        }
    }
}
