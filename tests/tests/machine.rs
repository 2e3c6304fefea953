//! The panic of an operating system, survived: a program in a virtual machine (QEMU, without KVM)
//! sets up a chain on the card of the machine's host; its kernel panics, its machine is halted, and
//! the chain goes on answering. Another machine takes the session over.
//!
//! `./ci.sh machine` runs it, with the image that `scripts/rxe-vm.sh with PROGRAM` makes.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use remora::daemon::{Observer, Server, ServerOptions};
use remora::event::Event;
use remora::message::SessionStatus;
use remora::nic::Psn;
use remora::offload::chain::offload::list;
use remora::prelude::*;

/// How long the machine may take for anything.
const PATIENCE: Duration = Duration::from_secs(120);
/// How long a chain may take to answer.
const LONG: Duration = Duration::from_secs(20);

/// A daemon in a thread of this process, with a socket for a machine.
struct Daemon {
    folder: PathBuf,
    stop: Arc<Event>,
    thread: Option<JoinHandle<()>>,
}

impl Daemon {
    fn start() -> Daemon {
        let folder = std::env::temp_dir().join(format!("remora-machine-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let device = DeviceOptions::new().embedded().open().unwrap();
        let socket = Some(folder.join("nic.sock"));
        let options = ServerOptions { socket, ..ServerOptions::default() };
        let mut server = Server::new(device, options).unwrap();
        server.serve_machine(folder.join("web.sock")).unwrap();
        let stop = Arc::new(Event::new().unwrap());
        let told = stop.clone();
        let thread = Some(thread::spawn(move || server.run(&told).unwrap()));
        Daemon { folder, stop, thread }
    }

    fn session(&self) -> SessionStatus {
        let observer = Observer::connect(Some(&self.folder.join("nic.sock"))).unwrap();
        let mut sessions = observer.status().unwrap().sessions;
        assert_eq!(sessions.len(), 1);
        sessions.remove(0)
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.stop.notify().unwrap();
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(ended.is_none_or(|ended| ended.is_ok()) || thread::panicking());
        std::fs::remove_dir_all(&self.folder).ok();
    }
}

/// A running machine, with its console.
struct Machine {
    qemu: Child,
    lines: mpsc::Receiver<String>,
    /// What the console has said.
    said: String,
}

impl Machine {
    /// `nic` is the machine's REMORA_NIC.
    fn boot(image: &Path, daemon: &Daemon, nic: &str) -> Machine {
        let socket = daemon.folder.join("web.sock");
        let mut command = Command::new("qemu-system-x86_64");
        command
            .args(["-nodefaults", "-no-user-config", "-no-reboot", "-display", "none"])
            // With one processor, TCG's atomics are none for the host.
            .args(["-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2", "-m", "256"])
            .arg("-kernel")
            .arg(image.join("vmlinuz"))
            .arg("-initrd")
            .arg(image.join("initrd"))
            .args(["-append", &format!("console=ttyS0 quiet panic=0 rdinit=/machine_init {nic}")])
            .args(["-serial", "stdio"])
            .args(["-chardev", &format!("socket,id=card,path={}", socket.display())])
            .args(["-device", "ivshmem-doorbell,vectors=2,chardev=card"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        // SAFETY: between fork and exec, this makes one system call and nothing else.
        unsafe {
            command.pre_exec(|| {
                // The machine ends even if the test is killed.
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                Ok(())
            });
        }
        let mut qemu = command.spawn().unwrap();
        let console = BufReader::new(qemu.stdout.take().unwrap());
        let (tell, lines) = mpsc::channel();
        thread::spawn(move || {
            for line in console.split(b'\n').map_while(Result::ok) {
                if tell.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
                    break;
                }
            }
        });
        Machine { qemu, lines, said: String::new() }
    }

    /// The rest of the next line on the console that has this mark.
    fn line(&mut self, mark: &str) -> String {
        let until = Instant::now() + PATIENCE;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let line = self.lines.recv_timeout(left);
            let line = line.unwrap_or_else(|_| panic!("no `{mark}`; it said:\n{}", self.said));
            if let Some((_, rest)) = line.split_once(mark) {
                return rest.trim().to_owned();
            }
            self.said.push_str(&line);
            self.said.push('\n');
        }
    }

    fn say(&mut self, line: &str) {
        writeln!(self.qemu.stdin.as_mut().unwrap(), "{line}").unwrap();
    }

    /// Starts its program; returns a client of the program's chain, and the ticket.
    fn serve(&mut self, words: &str, host: &Device) -> (Caller, String) {
        self.line("program: ready");
        self.say(words);
        let line = self.line("program: ");
        let words: Vec<&str> = line.splitn(5, ' ').collect();
        let [address, qpn, psn, at, ticket] = words[..] else { panic!("{line}") };
        let client = AsyncChainClient::new(&host.alloc_pd().unwrap(), 64).unwrap();
        let psn = Psn::new(psn.parse().unwrap());
        let peer = Peer { address: address.parse().unwrap(), qpn: qpn.parse().unwrap(), psn };
        client.connect(peer, host.info().mtu).unwrap();
        let Peer { address, qpn, psn } = client.local();
        self.say(&format!("{address} {qpn} {}", psn.value()));
        self.line("program: serves");
        (Caller { client, at: at.parse().unwrap() }, ticket.to_owned())
    }

    /// Ends QEMU, as a power failure would.
    fn halt(&mut self) {
        self.qemu.kill().unwrap();
        self.qemu.wait().unwrap();
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.qemu.kill().ok();
        self.qemu.wait().ok();
    }
}

/// A client of a chain.
struct Caller {
    client: AsyncChainClient,
    /// Where the chain's list begins.
    at: u64,
}

impl Caller {
    fn ask(&mut self) -> Vec<u8> {
        self.client.call(&list::message(7, self.at)).wait(LONG).unwrap()
    }

    /// Asks many times, and has the right answer each time.
    fn expect(&mut self, answer: &[u8]) {
        (0..100).for_each(|_| assert_eq!(self.ask(), answer));
    }
}

#[test]
fn a_chain_answers_when_its_operating_system_has_panicked() {
    let Some(image) = std::env::var_os("REMORA_MACHINE_IMAGE").map(PathBuf::from) else {
        println!("skipped: it needs a virtual machine; run: ./ci.sh machine");
        return;
    };
    let daemon = Daemon::start();
    let host = DeviceOptions::new().embedded().open().unwrap();
    let start = Instant::now();
    let mut machine = Machine::boot(&image, &daemon, "");
    let (mut seven, ticket) = machine.serve("serve", &host);
    println!("the machine serves after {:.1} s", start.elapsed().as_secs_f64());
    seven.expect(b"seven");
    let session = daemon.session();
    assert!(session.is_machine && session.attached && session.name == "web/list", "{session:?}");
    assert_eq!(session.pid, machine.qemu.id() as i32);

    machine.say("crash");
    machine.line("Kernel panic - not syncing");
    seven.expect(b"seven");
    machine.halt();
    let until = Instant::now() + LONG;
    while daemon.session().attached {
        assert!(Instant::now() < until, "the daemon does not notice that the machine has ended");
        thread::sleep(Duration::from_millis(1));
    }
    seven.expect(b"seven");

    let mut next = Machine::boot(&image, &daemon, "remora.nic=ivshmem");
    let (mut eight, _) = next.serve(&format!("take {ticket}"), &host);
    eight.expect(b"eight");
    seven.expect(b"seven");
    let session = daemon.session();
    assert!(session.attached && session.epoch == 2, "{session:?}");
    assert_eq!(session.refused, 0, "no doorbell was lost or false");
    println!("all is done after {:.1} s", start.elapsed().as_secs_f64());
}
