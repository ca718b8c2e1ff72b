//! Operations inside a remote sandbox, each a request to the remote service.

use std::time::Duration;

use async_trait::async_trait;
use guest_protocol::{CONSOLE_LINES_MAX, GLOB_RESULTS_MAX};

use super::files::file_info;
use super::guest::CustomGuest;
use super::{exec, files, listen, ports, processes, search, tree};
use crate::agent::{check_mode, check_path};
use crate::{
    Amend, Amended, Attach, Background, ByteStream, Command, EgressRequests, Error, FileChanges, FileContent, FileInfo,
    Guest, Interactive, ListeningPort, OutputStream, Pack, PortChanges, PortConnections, ProcessAction, ProcessEvents,
    ProcessInfo, Replace, ReplaceResult, Result, Search, SearchResult, Unpacked,
};

#[async_trait]
impl Guest for CustomGuest {
    async fn exec(&self, command: Command) -> Result<OutputStream> {
        if command.terminal.is_some() {
            return Ok(processes::interactive(self, command).await?.output);
        }
        exec::exec(self, command).await
    }

    async fn exec_interactive(&self, command: Command) -> Result<Interactive> {
        processes::interactive(self, command).await
    }

    async fn start_process(&self, command: Command, background: Background) -> Result<ProcessInfo> {
        processes::start(self, command, background).await
    }

    async fn processes(&self) -> Result<Vec<ProcessInfo>> {
        processes::list(self).await
    }

    async fn attach_process(&self, process: u64, attach: Attach) -> Result<ProcessEvents> {
        processes::attach(self, process, attach).await
    }

    async fn process_input(&self, process: u64, content: ByteStream, end: bool) -> Result<()> {
        processes::input(self, process, content, end).await
    }

    async fn control_process(&self, process: u64, action: ProcessAction) -> Result<()> {
        processes::control(self, process, action).await
    }

    async fn remove_process(&self, process: u64) -> Result<()> {
        processes::remove(self, process).await
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

    async fn delete(&self, path: &str, recursive: bool) -> Result<()> {
        check_path(path)?;
        let client = self.writing()?;
        self.ask_of("delete a file", path, client.delete_file(self.sandbox(), path, recursive)).await.map(|_| ())
    }

    async fn list(&self, path: &str) -> Result<Vec<FileInfo>> {
        const ACTION: &str = "list a directory";
        check_path(path)?;
        let entries = self.ask_of(ACTION, path, self.remote.client.list_files(self.sandbox(), path)).await?;
        let mut entries = entries.into_iter().map(|info| file_info(ACTION, info)).collect::<Result<Vec<_>>>()?;
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(entries)
    }

    async fn stat(&self, path: &str) -> Result<FileInfo> {
        const ACTION: &str = "read the metadata of a file";
        check_path(path)?;
        file_info(ACTION, self.ask_of(ACTION, path, self.remote.client.stat_file(self.sandbox(), path)).await?)
    }

    async fn rename(&self, old: &str, new: &str) -> Result<()> {
        check_path(old)?;
        check_path(new)?;
        let client = self.writing()?;
        self.ask_of("move a file", old, client.move_file(self.sandbox(), old, new)).await.map(|_| ())
    }

    async fn chmod(&self, path: &str, mode: u32) -> Result<()> {
        check_path(path)?;
        check_mode(mode)?;
        let client = self.writing()?;
        let mode = format!("{mode:04o}");
        let answer = client.chmod_file(self.sandbox(), path, &mode);
        self.ask_of("change the mode of a file", path, answer).await.map(|_| ())
    }

    async fn glob(&self, pattern: &str) -> Result<Vec<String>> {
        const ACTION: &str = "search for files";
        check_path(pattern)?;
        let mut paths = self.ask(ACTION, self.remote.client.glob_files(self.sandbox(), pattern)).await?;
        if paths.len() > GLOB_RESULTS_MAX || paths.iter().any(|path| check_path(path).is_err()) {
            return Err(Error::failed(ACTION, "the other service returned an invalid answer"));
        }
        paths.sort();
        Ok(paths)
    }

    async fn search(&self, request: &Search) -> Result<SearchResult> {
        check_path(&request.scope.path)?;
        search::search(self, request).await
    }

    async fn replace(&self, request: &Replace) -> Result<ReplaceResult> {
        check_path(&request.scope.path)?;
        search::replace(self, request).await
    }

    async fn archive(&self, path: &str) -> Result<ByteStream> {
        check_path(path)?;
        files::archive(self, path).await
    }

    async fn unpack(&self, path: &str, archive: ByteStream) -> Result<Unpacked> {
        check_path(path)?;
        files::unpack(self, path, archive).await
    }

    async fn manifest(&self, path: &str, checksum: bool) -> Result<ByteStream> {
        check_path(path)?;
        tree::manifest(self, path, checksum).await
    }

    async fn pack(&self, request: &Pack) -> Result<ByteStream> {
        check_path(&request.path)?;
        tree::pack(self, request).await
    }

    async fn amend(&self, request: &Amend) -> Result<Amended> {
        check_path(&request.path)?;
        tree::amend(self, request).await
    }

    async fn watch(&self, path: &str, recursive: bool) -> Result<FileChanges> {
        check_path(path)?;
        files::watch(self, path, recursive).await
    }

    async fn console(&self, lines: usize) -> Result<Vec<String>> {
        let lines = lines.min(CONSOLE_LINES_MAX);
        let asked = u32::try_from(lines).unwrap_or(u32::MAX);
        let answer = self.ask("read the console", self.remote.client.logs(self.sandbox(), Some(asked)));
        let mut answer = answer.await?;
        answer.drain(..answer.len().saturating_sub(lines));
        Ok(answer)
    }

    async fn ports(&self) -> Result<Vec<ListeningPort>> {
        ports::list(self).await
    }

    async fn watch_ports(&self, _: Duration) -> Result<PortChanges> {
        Err(Error::NotSupported(
            "the provider `custom` does not watch ports; use the events of the other service instead".to_owned(),
        ))
    }

    async fn connect(&self, port: u16, input: ByteStream) -> Result<ByteStream> {
        if port == 0 {
            return Err(Error::Invalid("port 0 does not exist; ports are numbered from 1".to_owned()));
        }
        ports::connect(self, port, input).await
    }

    async fn listen(&self, port: u16) -> Result<PortConnections> {
        if port == 0 {
            return Err(Error::Invalid("port 0 does not exist; ports are numbered from 1".to_owned()));
        }
        listen::listen(self, port).await
    }

    async fn egress(&self) -> Result<EgressRequests> {
        Err(Error::NotSupported("with the provider `custom`, the other service makes the connections".to_owned()))
    }

    async fn trust(&self, _: &str) -> Result<()> {
        Err(Error::NotSupported("with the provider `custom`, the other service makes the connections".to_owned()))
    }

    async fn set_deadline(&self, after: Duration) -> Result<()> {
        // The API cannot express a shorter lifetime.
        let ttl = domain::format_duration(after.max(Duration::from_millis(1)));
        let client = self.writing()?;
        self.ask("set the deadline of a box", client.extend(self.sandbox(), &ttl)).await.map(|_| ())
    }
}
