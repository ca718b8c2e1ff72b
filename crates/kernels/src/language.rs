//! Languages, and how to start a kernel of each.

use std::fmt;
use std::str::FromStr;

/// Language of a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Language {
    Python,
    JavaScript,
    TypeScript,
    Bash,
    R,
    Java,
}

/// Redirects the streams for a driver, which has its requests on descriptor 4 and its messages on 3 and 5, and looks
/// for the first of `$programs` that is there. Code that reads stdin finds its end, and not the requests.
const REDIRECT: &str = "exec 3>&1 5>&2 4<&0 </dev/null
for program in $programs; do command -v \"$program\" >/dev/null && exec \"$program\" \"$@\"; done
exit 127";

/// Starts Java with its driver in a file, because `java` reads sources from nowhere else.
const START_JAVA: &str = include_str!("../drivers/start_java.sh");

impl Language {
    /// All languages.
    pub const ALL: [Self; 6] = [Self::Python, Self::JavaScript, Self::TypeScript, Self::Bash, Self::R, Self::Java];

    /// Returns its name, as callers write it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Python => "python",
            Self::JavaScript => "javascript",
            Self::TypeScript => "typescript",
            Self::Bash => "bash",
            Self::R => "r",
            Self::Java => "java",
        }
    }

    /// Returns the programs that can run it, in order of preference.
    #[must_use]
    pub const fn programs(self) -> &'static [&'static str] {
        match self {
            Self::Python => &["python3", "python"],
            Self::JavaScript | Self::TypeScript => &["node", "nodejs"],
            Self::Bash => &["bash"],
            Self::R => &["Rscript"],
            Self::Java => &["java"],
        }
    }

    /// Returns the command that starts a kernel. It reads what [`crate::start`] returns first, exits with 127 if none
    /// of the programs is there, and with 126 if the one that is there is too old or lacks a compiler.
    #[must_use]
    pub fn command(self) -> Vec<String> {
        let arguments: &[&str] = match self {
            Self::Python => &["-c", include_str!("../drivers/start.py")],
            Self::JavaScript | Self::TypeScript => &[
                "--expose-internals",
                "--no-warnings",
                "--experimental-vm-modules",
                "-e",
                include_str!("../drivers/start.js"),
            ],
            Self::Bash => &["--noprofile", "--norc", "-c", include_str!("../drivers/start.sh"), "bash"],
            Self::R => &["--no-save", "--no-restore", "--no-init-file", "-e", include_str!("../drivers/start.R")],
            Self::Java => &[
                "--add-opens=java.base/java.io=ALL-UNNAMED",
                "--add-opens=java.base/java.lang=ALL-UNNAMED",
                "--add-opens=java.base/java.util=ALL-UNNAMED",
                "--add-opens=java.base/jdk.internal.misc=ALL-UNNAMED",
                "-Dfile.encoding=UTF-8",
                "-Dsun.jnu.encoding=UTF-8",
                "-Djava.awt.headless=true",
                "--source=11",
            ],
        };
        let script = if self == Self::Java {
            START_JAVA.to_owned()
        } else {
            format!("programs='{}'\n{REDIRECT}", self.programs().join(" "))
        };
        let fixed = ["/bin/sh", "-c", &script, "sh"];
        fixed.iter().chain(arguments).map(|word| (*word).to_owned()).collect()
    }

    /// Returns the source of its driver. Form feeds separate the parts of Python's, which are compiled at first use.
    pub(crate) const fn driver(self) -> &'static str {
        match self {
            Self::Python => concat!(
                include_str!("../drivers/python.py"),
                "\x0c",
                include_str!("../drivers/python_hooks.py"),
                "\x0c",
                include_str!("../drivers/python_show.py"),
                "\x0c",
                include_str!("../drivers/python_charts.py"),
                "\x0c",
                include_str!("../drivers/python_plain.py"),
                "\x0c",
                include_str!("../drivers/python_magics.py"),
                "\x0c",
                include_str!("../drivers/python_loop.py"),
                "\x0c",
                include_str!("../drivers/python_completion.py"),
                "\x0c",
                include_str!("../drivers/python_ipython.py"),
            ),
            Self::JavaScript => concat!(
                include_str!("../drivers/javascript.js"),
                include_str!("../drivers/javascript_code.js"),
                include_str!("../drivers/javascript_kernel.js"),
            ),
            Self::TypeScript => concat!(
                "const TYPESCRIPT = true;\n",
                include_str!("../drivers/javascript.js"),
                include_str!("../drivers/javascript_code.js"),
                include_str!("../drivers/javascript_kernel.js"),
            ),
            Self::Bash => include_str!("../drivers/bash.sh"),
            Self::R => include_str!("../drivers/r.R"),
            Self::Java => concat!(
                include_str!("../drivers/java.java"),
                include_str!("../drivers/java_execution.java"),
                include_str!("../drivers/java_variables.java"),
                include_str!("../drivers/java_messages.java"),
            ),
        }
    }

    /// Returns what a sandbox without an interpreter for it lacks, as a message for the caller.
    #[must_use]
    pub const fn lacking(self) -> &'static str {
        match self {
            Self::Python => {
                "`python3` is not in the sandbox; install it (3.8 or later, and not `python3-minimal`), or choose an \
                 image that has it"
            }
            Self::JavaScript => "`node` is not in the sandbox; install it, or choose an image that has it",
            Self::TypeScript => {
                "TypeScript needs a `node` of version 22.13 or later, which the sandbox has not; install it, or choose \
                 an image that has it"
            }
            Self::Bash => "`bash` is not in the sandbox; install it, or choose an image that has it",
            Self::R => "`Rscript` is not in the sandbox; install it, or choose an image that has it",
            Self::Java => {
                "Java needs the `java` of a JDK of version 11 or later, with `jshell` next to it, which the sandbox has \
                 not; install one, or choose an image that has it"
            }
        }
    }
}

impl fmt::Display for Language {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A name that no language has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no language here; the languages are `python`, `javascript`, `typescript`, `bash`, `r` and `java`")]
pub struct UnknownLanguage(String);

impl FromStr for Language {
    type Err = UnknownLanguage;

    /// Parses a name, in any case; `js` and `ts` are short for two of them.
    fn from_str(text: &str) -> Result<Self, UnknownLanguage> {
        let name = text.trim().to_lowercase();
        let named = match name.as_str() {
            "js" => Some(Self::JavaScript),
            "ts" => Some(Self::TypeScript),
            name => Self::ALL.into_iter().find(|language| language.name() == name),
        };
        named.ok_or(UnknownLanguage(name))
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn each_name_parses_in_any_case_and_no_other_does() {
        for language in Language::ALL {
            assert_eq!(language.name().to_uppercase().parse(), Ok(language));
        }
        assert_eq!(" TS ".parse(), Ok(Language::TypeScript));
        assert_eq!("js".parse(), Ok(Language::JavaScript));
        for unknown in ["", "perl", "python3"] {
            assert!(unknown.parse::<Language>().is_err(), "{unknown}");
        }
    }
}
