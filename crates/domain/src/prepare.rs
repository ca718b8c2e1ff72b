//! Commands that run in a box before its sandbox counts as running.

use std::collections::BTreeMap;
use std::time::Duration;

/// A command that runs in a box before its sandbox counts as running.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PrepareCommand {
    /// A shell line, or a program if `is_argv`.
    pub command: String,
    /// Arguments, quoted and appended to a shell line.
    pub args: Vec<String>,
    /// True if no shell reads the command.
    pub is_argv: bool,
    /// Language in whose default context the command runs as code; `None` for a command of the box.
    pub language: Option<String>,
    /// Variables added to the sandbox's environment.
    pub env: BTreeMap<String, String>,
    /// Working directory; `None` for the default.
    pub workdir: Option<String>,
    /// User to run as; `None` for the default.
    pub user: Option<String>,
    /// Deadline; `None` for the default of a command, or none in the background.
    pub timeout: Option<Duration>,
    /// True if it goes on in the background, and the next command does not wait for its end.
    pub background: bool,
    /// Name of the background process.
    pub name: Option<String>,
    /// True if the stdin of the background process stays open.
    pub stdin_open: bool,
}

/// The bound that a list of commands breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidPrepare {
    /// There are too many commands.
    #[error(
        "`prepare` has {0} commands, and may have at most {max}; put them into a script",
        max = PrepareCommand::COMMANDS_MAX
    )]
    Many(usize),
    /// Their texts are too long.
    #[error(
        "the commands of `prepare` have {0} bytes in total, and may have at most {max}; put them into a file of \
         the image",
        max = PrepareCommand::BYTES_MAX
    )]
    Long(usize),
}

impl PrepareCommand {
    /// Maximum number of commands of one sandbox.
    pub const COMMANDS_MAX: usize = 16;
    /// Maximum length of all their texts together, in bytes.
    pub const BYTES_MAX: usize = 64 * 1024;

    /// Returns whether it leaves a process that later commands or the user of the sandbox need.
    #[must_use]
    pub fn leaves_process(&self) -> bool {
        self.background || self.language.is_some()
    }

    fn bytes(&self) -> usize {
        let optional = [&self.workdir, &self.user, &self.name].into_iter().flatten().map(String::len);
        let env = self.env.iter().map(|(name, value)| name.len() + value.len());
        self.command.len() + self.args.iter().map(String::len).chain(optional).chain(env).sum::<usize>()
    }

    /// Checks the bounds of a list of commands.
    ///
    /// # Errors
    /// The bound that it breaks.
    pub fn check(commands: &[PrepareCommand]) -> Result<(), InvalidPrepare> {
        if commands.len() > Self::COMMANDS_MAX {
            return Err(InvalidPrepare::Many(commands.len()));
        }
        match commands.iter().map(Self::bytes).sum() {
            0..=Self::BYTES_MAX => Ok(()),
            bytes => Err(InvalidPrepare::Long(bytes)),
        }
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn commands_are_bounded_in_number_and_length() {
        let command = |bytes: usize| PrepareCommand { command: "x".repeat(bytes), ..PrepareCommand::default() };
        assert_eq!(PrepareCommand::check(&[]), Ok(()));
        assert_eq!(PrepareCommand::check(&vec![command(1); 16]), Ok(()));
        assert_eq!(PrepareCommand::check(&vec![command(1); 17]), Err(InvalidPrepare::Many(17)));
        assert_eq!(PrepareCommand::check(&[command(65_536)]), Ok(()));
        let name = Some("n".to_owned());
        let env = [("k".to_owned(), "v".to_owned())].into();
        let all = PrepareCommand {
            args: vec!["a".to_owned()],
            workdir: name.clone(),
            user: name.clone(),
            name,
            env,
            ..command(65_530)
        };
        assert_eq!(PrepareCommand::check(std::slice::from_ref(&all)), Ok(()));
        assert_eq!(PrepareCommand::check(&[all, command(1)]), Err(InvalidPrepare::Long(65_537)));
    }
}
