//! Running commands by number, and requests to them that do not wait behind their stdin.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use guest_protocol::{Action, Control};
use rustix::process::{Pid, Signal, kill_process_group};
use rustix::termios::tcgetpgrp;

use super::processes::Processes;
use super::reapers::Reaper;
use super::terminal;
use crate::failure::{Result, invalid, refused};

/// All commands that run and that a client waits for.
#[derive(Debug, Default)]
pub(crate) struct Commands {
    last: Cell<u64>,
    by_number: RefCell<HashMap<u64, Rc<Running>>>,
}

#[derive(Debug)]
struct Running {
    reaper: Rc<Reaper>,
    terminal: Option<Rc<OwnedFd>>,
}

/// A command in the list; dropping it removes it.
#[derive(Debug)]
pub(super) struct Listed<'a> {
    commands: &'a Commands,
    number: u64,
}

impl Listed<'_> {
    pub(super) fn number(&self) -> u64 {
        self.number
    }
}

impl Drop for Listed<'_> {
    fn drop(&mut self) {
        self.commands.by_number.borrow_mut().remove(&self.number);
    }
}

impl Commands {
    /// Lists a command under a number that was never used before.
    pub(super) fn add(&self, reaper: Rc<Reaper>, terminal: Option<Rc<OwnedFd>>) -> Listed<'_> {
        let number = self.last.get() + 1;
        self.last.set(number);
        self.by_number.borrow_mut().insert(number, Rc::new(Running { reaper, terminal }));
        Listed { commands: self, number }
    }

    /// Carries out a request. A command that has already ended is left alone, since its end and the
    /// request may cross.
    ///
    /// # Errors
    /// Invalid for an action that is never possible on this command.
    pub(crate) fn control(&self, control: Control) -> Result<()> {
        let Some(running) = self.by_number.borrow().get(&control.command).cloned() else { return Ok(()) };
        match control.action {
            Action::Resize(size) => {
                let terminal = running.terminal.as_ref();
                let terminal = terminal.ok_or_else(|| invalid("the command has no terminal to resize"))?;
                terminal::set_size(terminal, size).map_err(|errno| refused("cannot resize the terminal", errno))
            }
            Action::Signal(signal) => {
                running.signal(named(signal)?);
                Ok(())
            }
            Action::SignalCommand(signal) => {
                running.signal_group(running.reaper.main.get(), named(signal)?);
                Ok(())
            }
        }
    }
}

/// # Errors
/// Invalid for a number that is no signal.
fn named(signal: i32) -> Result<Signal> {
    Signal::from_named_raw(signal).ok_or_else(|| invalid("unknown signal"))
}

impl Running {
    /// Signals the foreground of the terminal, else the command's own group.
    fn signal(&self, signal: Signal) {
        let foreground = self.terminal.as_ref().and_then(|terminal| tcgetpgrp(terminal).ok());
        let foreground = foreground.map(|pid| pid.as_raw_nonzero().get());
        self.signal_group(foreground.into_iter().chain(self.reaper.main.get()), signal);
    }

    /// Signals the first of `groups` that has a process of this command.
    fn signal_group(&self, groups: impl IntoIterator<Item = i32>, signal: Signal) {
        if self.reaper.is_gone() {
            return;
        }
        // A group's number alone proves little: the box decides which group is in the foreground,
        // and the number of one that has ended may have been reused.
        let processes = Processes::read();
        let group = groups.into_iter().find(|group| processes.has_group_below(self.reaper.pid, *group));
        if let Some(group) = group.and_then(Pid::from_raw).filter(|group| group.as_raw_nonzero().get() > 1) {
            // Processes that have ended meanwhile need no signal.
            let _ = kill_process_group(group, signal);
        }
    }
}
