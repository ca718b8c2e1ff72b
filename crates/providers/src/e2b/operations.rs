//! Operations inside a sandbox, each a call to its data plane.

use std::time::Duration;

use async_trait::async_trait;

use super::guest::E2bGuest;
use super::{exec, files, glob, ports, processes, tunnel};
use crate::agent::{check_mode, check_path, check_port};
use crate::{
    Amend, Amended, Attach, Background, ByteStream, Command, EgressRequests, Error, FileChanges, FileContent, FileInfo,
    Guest, Interactive, ListeningPort, NewXattrs, OutputStream, Pack, PortChanges, PortConnections, ProcessAction,
    ProcessEvents, ProcessInfo, Replace, ReplaceResult, Result, Search, SearchResult, Unpacked,
};

/// Returns the error of an operation that the service has no call for.
fn no_call(what: &str, instead: &str) -> Error {
    Error::NotSupported(format!("the provider `e2b` cannot {what}; {instead}"))
}

fn no_archives() -> Error {
    no_call("pack or unpack archives", "run `tar` in the sandbox")
}

impl E2bGuest {
    /// Fails with [`Error::Gone`] if the sandbox is gone, else with the error.
    async fn unless_gone<T>(&self, error: Error) -> Result<T> {
        if self.known.dead.is_cancelled() || !self.remote.still_runs(&self.known).await? {
            return Err(Error::Gone);
        }
        Err(error)
    }
}

#[async_trait]
impl Guest for E2bGuest {
    async fn exec(&self, command: Command) -> Result<OutputStream> {
        Ok(exec::interactive(self, command).await?.output)
    }

    async fn exec_interactive(&self, command: Command) -> Result<Interactive> {
        exec::interactive(self, command).await
    }

    async fn start_process(&self, command: Command, background: Background) -> Result<ProcessInfo> {
        processes::start(self, command, background).await
    }

    async fn processes(&self) -> Result<Vec<ProcessInfo>> {
        processes::list(self).await
    }

    async fn attach_process(&self, process: u64, attach: Attach) -> Result<ProcessEvents> {
        processes::find(self, process).await?;
        self.known.processes.attach(process, attach)
    }

    async fn process_input(&self, process: u64, content: ByteStream, end: bool) -> Result<()> {
        processes::find(self, process).await?;
        self.known.processes.input(process, content, end).await
    }

    async fn control_process(&self, process: u64, action: ProcessAction) -> Result<()> {
        processes::find(self, process).await?;
        self.known.processes.control(process, action).await
    }

    async fn remove_process(&self, process: u64) -> Result<()> {
        processes::find(self, process).await?;
        self.known.processes.remove(process).await
    }

    async fn read_file(&self, path: &str, offset: u64, length: Option<u64>) -> Result<FileContent> {
        check_path(path)?;
        files::read(self, path, offset, length).await
    }

    async fn write_file(&self, path: &str, mode: Option<u32>, content: ByteStream) -> Result<()> {
        check_path(path)?;
        mode.map_or(Ok(()), check_mode)?;
        files::write(self, path, mode, content).await
    }

    async fn overwrite_file(&self, path: &str, xattrs: Option<NewXattrs>, content: ByteStream) -> Result<()> {
        check_path(path)?;
        if xattrs.is_some_and(|xattrs| !xattrs.values.is_empty()) {
            return Err(no_call("give a file extended attributes", "leave the metadata out"));
        }
        files::overwrite(self, path, content).await
    }

    async fn make_dir(&self, path: &str) -> Result<()> {
        check_path(path)?;
        files::make_dir(self, path).await
    }

    async fn resolve(&self, path: &str) -> Result<FileInfo> {
        check_path(path)?;
        files::resolve(self, path).await
    }

    async fn delete(&self, path: &str, recursive: bool) -> Result<()> {
        check_path(path)?;
        files::delete(self, path, recursive).await
    }

    async fn list(&self, path: &str) -> Result<Vec<FileInfo>> {
        check_path(path)?;
        let mut entries = files::list(self, path, 1).await?;
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(entries)
    }

    async fn stat(&self, path: &str) -> Result<FileInfo> {
        check_path(path)?;
        files::file_info("read the metadata of a file", files::entry(self, path).await?)
    }

    async fn rename(&self, old: &str, new: &str) -> Result<()> {
        check_path(old)?;
        check_path(new)?;
        files::rename(self, old, new).await
    }

    async fn chmod(&self, path: &str, mode: u32) -> Result<()> {
        check_path(path)?;
        check_mode(mode)?;
        files::chmod(self, path, mode).await
    }

    async fn glob(&self, pattern: &str) -> Result<Vec<String>> {
        check_path(pattern)?;
        glob::glob(self, pattern).await
    }

    async fn search(&self, _: &Search) -> Result<SearchResult> {
        Err(no_call("search in files", "run `grep` in the sandbox"))
    }

    async fn replace(&self, _: &Replace) -> Result<ReplaceResult> {
        Err(no_call("replace in files", "run `sed` in the sandbox"))
    }

    async fn archive(&self, _: &str) -> Result<ByteStream> {
        Err(no_archives())
    }

    async fn unpack(&self, _: &str, _: ByteStream) -> Result<Unpacked> {
        Err(no_archives())
    }

    async fn manifest(&self, _: &str, _: bool) -> Result<ByteStream> {
        Err(no_call("describe a directory", "list it"))
    }

    async fn pack(&self, _: &Pack) -> Result<ByteStream> {
        Err(no_archives())
    }

    async fn amend(&self, _: &Amend) -> Result<Amended> {
        Err(no_call("change many files at once", "change one after the other"))
    }

    async fn watch(&self, _: &str, _: bool) -> Result<FileChanges> {
        Err(no_call("watch files", "list the directory from time to time"))
    }

    async fn console(&self, _: usize) -> Result<Vec<String>> {
        let error = no_call("show a console", "read the output of commands and background processes");
        self.unless_gone(error).await
    }

    async fn ports(&self) -> Result<Vec<ListeningPort>> {
        ports::list(self).await
    }

    async fn watch_ports(&self, _: Duration) -> Result<PortChanges> {
        Err(no_call("watch ports", "list them from time to time"))
    }

    async fn connect(&self, port: u16, input: ByteStream) -> Result<ByteStream> {
        check_port(port)?;
        tunnel::connect(self, port, input).await
    }

    async fn listen(&self, port: u16) -> Result<PortConnections> {
        check_port(port)?;
        Err(no_call("listen on a port of a sandbox for you", "connect from the other side"))
    }

    async fn egress(&self) -> Result<EgressRequests> {
        Err(Error::NotSupported("with the provider `e2b`, the service makes the connections".to_owned()))
    }

    async fn trust(&self, _: &str) -> Result<()> {
        Err(Error::NotSupported("with the provider `e2b`, the service makes the connections".to_owned()))
    }

    async fn set_deadline(&self, after: Duration) -> Result<()> {
        let seconds = self.rules.seconds(after)?;
        let set = self.remote.control.set_timeout(&self.known.sandbox, seconds);
        set.await.map_err(|fault| super::fault::control_fault("set the deadline of a box", fault))?;
        self.known.ends_after(Duration::from_secs(seconds));
        Ok(())
    }
}
