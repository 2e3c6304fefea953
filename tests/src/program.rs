//! An end that is `tests/peer/verbs_peer.c`: in the machine on the kernel's soft-RoCE, or on this
//! host on the libibverbs that its environment names.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Shutdown, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::end::{At, Done, End, Met, PATIENCE, Pair, QKEY, REGION, Service, Status, Terms, Work};
use crate::machine::Machine;

/// The longest wait for a line: longer than the program's own time limits.
const LINE_PATIENCE: Duration = Duration::from_secs(90);

/// The program.
pub struct Program {
    name: String,
    address: IpAddr,
    at: At,
    gid: u64,
    input: Box<dyn Write>,
    output: BufReader<Box<dyn Read>>,
    close: Box<dyn Fn()>,
    child: Option<Child>,
}

impl Program {
    /// Starts the program in the machine, on the device that has `address`.
    pub fn in_machine(machine: &Machine, address: IpAddr) -> Program {
        let running = machine.start("exec verbs_peer").expect("the machine's agent");
        let stream = running.into_stream();
        stream.set_read_timeout(Some(LINE_PATIENCE)).expect("a socket");
        let clone = |stream: &TcpStream| stream.try_clone().expect("a descriptor");
        let (input, output) = (clone(&stream), clone(&stream));
        let close = Box::new(move || drop(stream.shutdown(Shutdown::Both)));
        Program::begin("the kernel", address, Box::new(input), Box::new(output), close, None)
    }

    /// Starts the program on this host, by a command that ends with the program's path, on the
    /// device that has `address`.
    pub fn here(mut command: Command, address: IpAddr) -> Program {
        let (ours, theirs) = UnixStream::pair().expect("a socket");
        let input: OwnedFd = theirs.try_clone().expect("a descriptor").into();
        command.stdin(Stdio::from(input)).stdout(Stdio::from(OwnedFd::from(theirs)));
        let child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        drop(command);
        ours.set_read_timeout(Some(LINE_PATIENCE)).expect("a socket");
        let clone = |stream: &UnixStream| stream.try_clone().expect("a descriptor");
        let (input, output) = (clone(&ours), clone(&ours));
        let close = Box::new(move || drop(ours.shutdown(Shutdown::Both)));
        Program::begin("libibverbs", address, Box::new(input), Box::new(output), close, Some(child))
    }

    fn begin(
        name: &str,
        address: IpAddr,
        input: Box<dyn Write>,
        output: Box<dyn Read>,
        close: Box<dyn Fn()>,
        child: Option<Child>,
    ) -> Program {
        let output = BufReader::new(output);
        let at = At { addr: 0, rkey: 0 };
        let name = name.to_owned();
        let mut program = Program { name, address, at, gid: 0, input, output, close, child };
        program.gid = program.ask(&format!("open {address}")).number("gid");
        let region = program.ask(&format!("mr {REGION}"));
        program.at = At { addr: region.number("addr"), rkey: region.number("rkey") as u32 };
        program
    }

    /// The index of the address in the device's GID table.
    pub fn gid(&self) -> u64 {
        self.gid
    }

    /// Sends a command.
    fn say(&mut self, line: &str) {
        let sent = self.input.write_all(format!("{line}\n").as_bytes());
        sent.unwrap_or_else(|error| panic!("{}: {line}: {error}", self.name));
    }

    /// Waits for an answer.
    fn hear(&mut self) -> Answer {
        let mut line = String::new();
        let heard = self.output.read_line(&mut line);
        heard.unwrap_or_else(|error| panic!("{}: no answer: {error}", self.name));
        assert!(line.ends_with('\n'), "{}: it has ended; its last output: {line:?}", self.name);
        Answer { line: line.trim_end().to_owned() }
    }

    /// Sends a command that must succeed.
    fn ask(&mut self, line: &str) -> Answer {
        self.say(line);
        let answer = self.hear();
        assert!(answer.line.starts_with("ok"), "{}: {line}: {}", self.name, answer.line);
        answer
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        (self.close)();
        if let Some(child) = &mut self.child {
            child.kill().ok();
            child.wait().ok();
        }
    }
}

/// An answer, "ok NAME=VALUE..."; the value of `text`, which comes last, may hold blanks.
struct Answer {
    line: String,
}

impl Answer {
    fn text(&self) -> String {
        self.line.split_once("text=").map_or(String::new(), |(_, text)| text.to_owned())
    }

    fn number(&self, name: &str) -> u64 {
        let values: HashMap<&str, &str> =
            self.line.split(' ').filter_map(|word| word.split_once('=')).collect();
        let value = values.get(name).and_then(|value| value.parse().ok());
        value.unwrap_or_else(|| panic!("no {name} in: {}", self.line))
    }
}

fn status(code: u64) -> Status {
    match code {
        0 => Status::Success,
        1 => Status::LocalLength,
        5 => Status::Flushed,
        9 => Status::RemoteInvalidRequest,
        10 => Status::RemoteAccess,
        11 => Status::RemoteOperation,
        12 => Status::RetryExceeded,
        13 => Status::RnrRetryExceeded,
        other => Status::Other(other as u32),
    }
}

impl End for Program {
    fn name(&self) -> &str {
        &self.name
    }

    fn address(&self) -> IpAddr {
        self.address
    }

    fn at(&self, offset: u64) -> At {
        At { addr: self.at.addr + offset, ..self.at }
    }

    fn fill(&mut self, offset: u64, len: u64, seed: u8) {
        self.ask(&format!("fill {offset} {len} {seed}"));
    }

    fn sum(&mut self, offset: u64, len: u64) -> u64 {
        self.ask(&format!("sum {offset} {len}")).number("sum")
    }

    fn set(&mut self, offset: u64, value: u64) {
        self.ask(&format!("set {offset} {value}"));
    }

    fn get(&mut self, offset: u64) -> u64 {
        self.ask(&format!("get {offset}")).number("value")
    }

    fn pair(&mut self, service: Service) -> Pair {
        let kind = match service {
            Service::Rc => "rc",
            Service::Uc => "uc",
            Service::Ud => "ud",
        };
        let made = self.ask(&format!("qp {kind} qkey={QKEY}"));
        Pair {
            index: made.number("qp") as usize,
            address: self.address,
            qpn: made.number("qpn") as u32,
            psn: made.number("psn") as u32,
        }
    }

    fn connect(&mut self, pair: &Pair, peer: &Pair, terms: &Terms) {
        let Pair { address, qpn, psn, .. } = peer;
        let Terms { mtu, timeout, retry, rnr_retry, rd_atomic, min_rnr } = terms;
        self.ask(&format!(
            "connect {} {address} qpn={qpn} psn={psn} mtu={mtu} timeout={timeout} retry={retry} \
             rnr={rnr_retry} rd={rd_atomic} min_rnr={min_rnr}",
            pair.index
        ));
    }

    fn ready(&mut self, pair: &Pair) {
        self.ask(&format!("ready {}", pair.index));
    }

    fn break_off(&mut self, pair: &Pair) {
        self.ask(&format!("break {}", pair.index));
    }

    fn destroy(&mut self, pair: &Pair) {
        self.ask(&format!("destroy {}", pair.index));
    }

    fn recv(&mut self, pair: &Pair, wr_id: u64, offset: u64, len: u64) {
        self.ask(&format!("recv {} {wr_id} {offset} {len}", pair.index));
    }

    fn post(&mut self, pair: &Pair, wr_id: u64, work: Work, offset: u64, len: u64) {
        let remote = |at: At| format!("addr={} rkey={}", at.addr, at.rkey);
        let (name, options) = match work {
            Work::Send(None) => ("send", String::new()),
            Work::Send(Some(imm)) => ("send_imm", format!("imm={imm}")),
            Work::Datagram(to, qkey, imm) => (
                if imm.is_some() { "send_imm" } else { "send" },
                format!("to={} qpn={} qkey={qkey} imm={}", to.address, to.qpn, imm.unwrap_or(0)),
            ),
            Work::Write(at, None) => ("write", remote(at)),
            Work::Write(at, Some(imm)) => ("write_imm", format!("{} imm={imm}", remote(at))),
            Work::Read(at) => ("read", remote(at)),
            Work::CompareSwap(at, compare, swap) => {
                ("compare_swap", format!("{} compare={compare} swap={swap}", remote(at)))
            }
            Work::FetchAdd(at, add) => ("fetch_add", format!("{} add={add}", remote(at))),
        };
        self.ask(&format!("post {} {wr_id} {name} {offset} {len} {options}", pair.index));
    }

    fn poll(&mut self, patience: Duration) -> Option<Done> {
        self.say(&format!("poll {}", patience.as_millis()));
        let answer = self.hear();
        if answer.line == "none" {
            return None;
        }
        assert!(answer.line.starts_with("ok"), "{}: poll: {}", self.name, answer.line);
        Some(Done {
            wr_id: answer.number("wr_id"),
            status: status(answer.number("status")),
            len: answer.number("len") as u32,
            imm: (answer.number("has_imm") == 1).then(|| answer.number("imm") as u32),
            src_qp: answer.number("src_qp") as u32,
            grh: answer.number("grh") == 1,
        })
    }

    fn listen(&mut self, port: u16) {
        self.ask(&format!("listen {port}"));
    }

    fn unlisten(&mut self) {
        self.ask("unlisten");
    }

    fn begin_connect(&mut self, to: IpAddr, port: u16, words: &str) {
        self.say(&format!("cm_connect {to} {port} {words} rd=4"));
    }

    fn begin_accept(&mut self, words: &str) {
        self.say(&format!("cm_accept {} {words} rd=4", PATIENCE.as_millis()));
    }

    fn begin_refuse(&mut self, words: &str) {
        self.say(&format!("cm_reject {} {words}", PATIENCE.as_millis()));
    }

    fn finish(&mut self) -> Met {
        let answer = self.hear();
        if answer.line.starts_with("ok qp=") {
            let (index, qpn) = (answer.number("qp") as usize, answer.number("qpn") as u32);
            let pair = Pair { index, address: self.address, qpn, psn: 0 };
            Met::Connected(pair, answer.text())
        } else if answer.line.starts_with("ok") || answer.line.starts_with("refused") {
            Met::Refused(answer.text())
        } else {
            Met::Failed(answer.line)
        }
    }

    fn disconnect(&mut self, pair: &Pair) {
        self.ask(&format!("cm_disconnect {}", pair.index));
    }

    fn ended(&mut self, pair: &Pair, patience: Duration) -> bool {
        self.say(&format!("cm_ended {} {}", pair.index, patience.as_millis()));
        self.hear().line == "ok"
    }
}

impl std::fmt::Debug for Program {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Program").field("name", &self.name).finish_non_exhaustive()
    }
}
