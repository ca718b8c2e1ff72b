//! Case of the suite.

use futures_util::future::BoxFuture;

use crate::lab::{Lab, Need};

/// A statement about providers, with its test.
#[derive(Debug)]
pub struct Case {
    /// Statement that the case tests.
    pub name: &'static str,
    /// Features without which the statement has no meaning.
    pub needs: &'static [Need],
    /// Test of the statement. Panics if it is not true.
    pub run: fn(Lab) -> BoxFuture<'static, ()>,
}

/// Makes a [`Case`] from an async function.
macro_rules! case {
    ($name:literal, $run:path $(, $need:ident)*) => {
        $crate::case::Case {
            name: $name,
            needs: &[$($crate::lab::Need::$need),*],
            run: |lab| Box::pin($run(lab)),
        }
    };
}
pub(crate) use case;
