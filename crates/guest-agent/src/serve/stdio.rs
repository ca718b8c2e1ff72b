//! The standard streams as a connection.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Duration;

use hyper_util::rt::TokioTimer;
use tokio::net::unix::pipe;

use super::connection;
use crate::agent::Agent;
use crate::descriptor::standard;
use crate::launch::duplicate_to;

/// Interval of pings: the standard streams do not end when the server does.
const PING_PERIOD: Duration = Duration::from_secs(10);
/// Time without an answer to a ping after which the server counts as gone and its commands are
/// ended.
const PING_WAIT: Duration = Duration::from_secs(20);

/// A connection over the standard streams.
#[derive(Debug)]
pub(super) struct Stdio {
    input: OwnedFd,
    output: OwnedFd,
}

impl Stdio {
    /// Takes the standard streams and leaves the null device in their place.
    pub(super) fn take() -> io::Result<Stdio> {
        let stdio = Stdio { input: standard(&io::stdin())?, output: standard(&io::stdout())? };
        let null = File::options().read(true).write(true).open("/dev/null")?;
        for number in 0..=2 {
            duplicate_to(&null, number)?;
        }
        Ok(stdio)
    }

    /// Serves until the server disconnects.
    pub(super) async fn serve(self, agent: Rc<Agent>) {
        let input = pipe::Receiver::from_owned_fd_unchecked(self.input);
        let output = pipe::Sender::from_owned_fd_unchecked(self.output);
        // On failure there is still the socket.
        let (Ok(input), Ok(output)) = (input, output) else { return };
        let mut builder = connection::builder();
        builder.timer(TokioTimer::new()).keep_alive_interval(PING_PERIOD).keep_alive_timeout(PING_WAIT);
        connection::serve(agent, tokio::io::join(input, output), &builder).await;
    }
}
