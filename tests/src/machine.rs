//! The virtual machine: boots it, runs commands in it, and kills it on drop.
//!
//! `scripts/rxe-vm.sh` says whether this computer can have one (exit status 77: it cannot), and
//! `stage_rxe` in `ci.sh` makes a skipped stage of that, or a failed one under CI.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::namespace::{MACHINE_V4, MACHINE_V6};

/// The port of the agent in the machine (`tests/peer/agent.c`).
const AGENT_PORT: u16 = 7000;
/// The byte that ends a command's output; its status follows.
const TRAILER: u8 = 4;

/// A running machine.
#[derive(Debug)]
pub struct Machine {
    qemu: Child,
    console: PathBuf,
}

/// The output of a command in the machine, and its status.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Output {
    /// Its standard output and standard error.
    pub text: String,
    /// Its exit status.
    pub status: i32,
}

/// A command that is running in the machine. Dropping it ends it.
#[derive(Debug)]
pub struct Running {
    stream: TcpStream,
}

impl Machine {
    /// Boots the image of `scripts/rxe-vm.sh`, with its network card at the end of `wire`, and
    /// waits until it takes commands.
    ///
    /// # Errors
    /// QEMU cannot be run, or the machine is not up in time; the error then shows its console.
    pub fn boot(image: &Path, wire: OwnedFd, mtu: u32, patience: Duration) -> io::Result<Machine> {
        let console = image.join(format!("console-{}.log", std::process::id()));
        let append = format!(
            "console=ttyS0 quiet panic=-1 mitigations=off nokaslr \
             remora.v4={MACHINE_V4}/24 remora.v6={MACHINE_V6}/64 remora.mtu={mtu}"
        );
        let mut command = Command::new("qemu-system-x86_64");
        command
            .args(["-nodefaults", "-no-user-config", "-no-reboot", "-display", "none"])
            .args(["-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2", "-m", "320"])
            .arg("-kernel")
            .arg(image.join("vmlinuz"))
            .arg("-initrd")
            .arg(image.join("initrd"))
            .args(["-append", &append])
            .args(["-serial", &format!("file:{}", console.display())])
            .args(["-netdev", "socket,id=wire,fd=0"])
            .args(["-device", "virtio-net-pci,netdev=wire,romfile="])
            .stdin(Stdio::from(wire));
        // SAFETY: between fork and exec, this makes one system call and nothing else.
        unsafe {
            command.pre_exec(|| {
                // The machine ends even if the test is killed.
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                Ok(())
            });
        }
        let mut machine = Machine { qemu: command.spawn()?, console };
        let end = Instant::now() + patience;
        while Instant::now() < end {
            if let Some(status) = machine.qemu.try_wait()? {
                return Err(machine.failure(&format!("QEMU ended: {status}")));
            }
            // A connection that is made before the agent listens would never be answered.
            if !machine.console().contains("agent: ready") {
                std::thread::sleep(Duration::from_millis(50));
                continue;
            }
            if let Ok(output) = machine.run("true", Duration::from_secs(10))
                && output.status == 0
            {
                return Ok(machine);
            }
        }
        Err(machine.failure("the machine does not answer"))
    }

    /// The text that the machine has written on its console.
    pub fn console(&self) -> String {
        let bytes = std::fs::read(&self.console).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    fn failure(&self, why: &str) -> io::Error {
        io::Error::other(format!("{why}; its console:\n{}", self.console()))
    }

    /// Starts a shell command in the machine.
    ///
    /// # Errors
    /// The agent does not answer.
    pub fn start(&self, command: &str) -> io::Result<Running> {
        let agent = SocketAddr::from((MACHINE_V4, AGENT_PORT));
        let mut stream = TcpStream::connect_timeout(&agent, Duration::from_secs(10))?;
        stream.set_nodelay(true)?;
        stream.write_all(format!("{command}\n").as_bytes())?;
        Ok(Running { stream })
    }

    /// Runs a shell command in the machine to its end.
    ///
    /// # Errors
    /// The agent does not answer, or the command does not end in time.
    pub fn run(&self, command: &str, patience: Duration) -> io::Result<Output> {
        self.start(command)?.finish(patience)
    }

    /// As [`Machine::run`], for commands that must succeed; returns the output.
    ///
    /// # Panics
    /// The command does not succeed within a minute.
    pub fn must(&self, command: &str) -> String {
        let output = self.run(command, Duration::from_secs(60));
        let output = output.unwrap_or_else(|error| panic!("in the machine, {command}: {error}"));
        assert_eq!(output.status, 0, "in the machine, {command}: {}", output.text);
        output.text
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // The machine has no state to save.
        self.qemu.kill().ok();
        self.qemu.wait().ok();
        std::fs::remove_file(&self.console).ok();
    }
}

impl Running {
    /// Waits for its end.
    ///
    /// # Errors
    /// The command does not end in time; it is killed then.
    pub fn finish(mut self, patience: Duration) -> io::Result<Output> {
        let end = Instant::now() + patience;
        let (mut said, mut piece) = (Vec::new(), [0; 4096]);
        loop {
            if let Some(output) = complete(&said) {
                return Ok(output);
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let text = String::from_utf8_lossy(&said);
                return Err(io::Error::other(format!("not done in {patience:?}; it said: {text}")));
            }
            self.stream.set_read_timeout(Some(left))?;
            match self.stream.read(&mut piece) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(len) => said.extend_from_slice(&piece[..len]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// The connection that is the command's standard input and output.
    pub fn into_stream(self) -> TcpStream {
        self.stream
    }
}

/// The output of a command, if it has ended.
fn complete(said: &[u8]) -> Option<Output> {
    let at = said.iter().rposition(|byte| *byte == TRAILER)?;
    let status = std::str::from_utf8(&said[at + 1..]).ok()?.strip_suffix('\n')?;
    let text = String::from_utf8_lossy(&said[..at]).into_owned();
    Some(Output { text, status: status.parse().ok()? })
}
