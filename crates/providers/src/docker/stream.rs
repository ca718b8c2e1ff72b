//! Byte stream to an agent, through the Engine.

use std::io;

use bollard::Docker as Client;
use bollard::container::{AttachContainerResults, LogOutput};
use bollard::errors::Error as ClientError;
use bollard::exec::{StartExecOptions, StartExecResults};
use bollard::models::ExecConfig;
use bollard::query_parameters::AttachContainerOptionsBuilder;
use futures_util::{Stream, StreamExt};
use guest_protocol::AGENT_PROGRAM;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::io::StreamReader;

/// Size of reads: as much as the Engine sends at once.
const READ_BYTES: usize = 32 * 1024;

/// User that may execute the agent but not read it, with the mode that [`super::volume`] sets:
/// the kernel lets no process of the box inspect such a program, from its first instruction on.
const RELAY_USER: &str = "65534:65534";

/// Attaches to the standard streams of a container's first process. They are one connection, and
/// complete only if attached before the container starts.
pub(super) async fn attach(
    client: &Client,
    container: &str,
) -> Result<impl AsyncRead + AsyncWrite + Send + Unpin + 'static, ClientError> {
    let options = AttachContainerOptionsBuilder::default().stream(true).stdin(true).stdout(true).build();
    let AttachContainerResults { output, input } = client.attach_container(container, Some(options)).await?;
    Ok(join(output, input))
}

/// Opens a connection to the agent of a running container, through a process that is started
/// there for it.
pub(super) async fn relay(
    client: &Client,
    container: &str,
) -> Result<impl AsyncRead + AsyncWrite + Send + Unpin + 'static, ClientError> {
    let exec = ExecConfig {
        attach_stdin: Some(true),
        attach_stdout: Some(true),
        cmd: Some(vec![AGENT_PROGRAM.to_owned(), "relay".to_owned()]),
        working_dir: Some("/".to_owned()),
        user: Some(RELAY_USER.to_owned()),
        ..ExecConfig::default()
    };
    let exec = client.create_exec(container, exec).await?;
    let options = StartExecOptions { output_capacity: Some(READ_BYTES), ..StartExecOptions::default() };
    match client.start_exec(&exec.id, Some(options)).await? {
        StartExecResults::Attached { output, input } => Ok(join(output, input)),
        StartExecResults::Detached => Err(io::Error::from(io::ErrorKind::NotConnected).into()),
    }
}

/// Joins input and output to one stream. Of the output frames, only stdout is the agent's.
fn join(
    output: impl Stream<Item = Result<LogOutput, ClientError>> + Send + Unpin + 'static,
    input: impl AsyncWrite + Send + Unpin + 'static,
) -> impl AsyncRead + AsyncWrite + Send + Unpin + 'static {
    let pieces = output.filter_map(|frame| {
        let piece = match frame {
            Ok(LogOutput::StdOut { message }) if !message.is_empty() => Some(Ok(message)),
            Ok(_) => None,
            Err(error) => Some(Err(io::Error::other(error))),
        };
        std::future::ready(piece)
    });
    tokio::io::join(StreamReader::new(pieces), input)
}
