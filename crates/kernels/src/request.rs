//! Requests to a driver.

use std::collections::BTreeMap;

use crate::{Language, Marker};

/// Request to a driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Request<'a> {
    /// Run code. Neither the code nor a variable contains a NUL.
    Run {
        /// Number that the messages about it have.
        run: u64,
        code: &'a str,
        /// Variables of the environment, for this run only.
        env: &'a BTreeMap<String, String>,
    },
    /// Say how code can be completed.
    Complete {
        /// Number that the messages about it have.
        run: u64,
        code: &'a str,
        /// Number of characters before the cursor.
        cursor: usize,
    },
}

impl Request<'_> {
    /// Returns its bytes for the kernel's stdin: a line of words, whose lengths in bytes announce what follows it.
    ///
    /// `run RUN CODE_LENGTH VARIABLE_LENGTH...` comes with the code and each `NAME=VALUE`;
    /// `complete RUN CURSOR CODE_LENGTH` with the code.
    #[must_use]
    pub fn to_bytes(self) -> Vec<u8> {
        match self {
            Self::Run { run, code, env } => {
                let variables: Vec<_> = env.iter().map(|(name, value)| format!("{name}={value}")).collect();
                let lengths: String = variables.iter().map(|variable| format!(" {}", variable.len())).collect();
                let head = format!("run {run} {}{lengths}\n", code.len());
                [head.as_str(), code].into_iter().chain(variables.iter().map(String::as_str)).collect::<String>().into()
            }
            Self::Complete { run, code, cursor } => format!("complete {run} {cursor} {}\n{code}", code.len()).into(),
        }
    }
}

/// Returns what a kernel reads first: the marker of its segments, and its driver.
#[must_use]
pub fn start(language: Language, marker: &Marker) -> Vec<u8> {
    let driver = language.driver();
    format!("{marker} {}\n{driver}", driver.len()).into()
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_request_announces_the_length_of_each_of_its_parts() {
        let env = BTreeMap::from([("A".to_owned(), "ö\n".to_owned()), ("B".to_owned(), String::new())]);
        let request = Request::Run { run: 7, code: "print('é')\n", env: &env };
        assert_eq!(request.to_bytes(), "run 7 12 5 2\nprint('é')\nA=ö\nB=".as_bytes());
        let request = Request::Complete { run: 8, code: "é.", cursor: 2 };
        assert_eq!(request.to_bytes(), "complete 8 2 3\né.".as_bytes());
    }
}
