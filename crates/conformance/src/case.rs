//! Case of the suite.

use std::time::Duration;

use futures_util::future::BoxFuture;

use crate::subject::{Need, Subject};

/// The longest time that one case may take, on a slow machine that emulates another.
pub(crate) const CASE_TIME_MAX: Duration = Duration::from_secs(600);

/// A statement about providers, with its test.
#[derive(Debug)]
pub struct Case {
    /// Statement that the case tests.
    pub name: &'static str,
    /// Features without which the statement has no meaning.
    pub needs: &'static [Need],
    /// Test of the statement. Panics if it is not true.
    pub run: fn(Subject) -> BoxFuture<'static, ()>,
}

/// Makes a [`Case`] from an async function.
macro_rules! case {
    ($name:literal, $run:path $(, $need:ident)*) => {
        $crate::case::Case {
            name: $name,
            needs: &[$($crate::subject::Need::$need),*],
            run: |subject| Box::pin($run(subject)),
        }
    };
}
pub(crate) use case;
