//! The wire between the host's interface and the machine's: a thread that carries frames both ways,
//! and on which a test may lose, repeat or delay the RoCE packets that it selects.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use remora::nic::wire::ROCE_PORT;
use rustix::event::{PollFd, PollFlags, poll};

use crate::namespace::WIRE;

/// Longer than any frame.
const ROOM: usize = 1 << 16;
/// The op-code of a datagram.
const UD_SEND_ONLY: u8 = 0x64;

/// The direction of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Towards {
    /// From the host to the machine.
    Machine,
    /// From the machine to the host.
    Host,
}

/// What the wire does with a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    /// It arrives.
    Pass,
    /// It is lost.
    Lose,
    /// It arrives twice.
    Repeat,
    /// It arrives after the next one.
    Delay,
}

/// A RoCE packet on the wire.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Seen {
    /// BTH op-code.
    pub opcode: u8,
    /// Destination queue pair.
    pub qpn: u32,
    /// Packet sequence number.
    pub psn: u32,
    /// For a message of the connection manager, its attribute: 0x10 to 0x18.
    pub cm: Option<u16>,
}

type Judge = Box<dyn FnMut(&Seen) -> Fate + Send>;

#[derive(Default)]
struct Direction {
    judge: Option<Judge>,
    delayed: Option<Vec<u8>>,
    /// The number of RoCE packets.
    packets: u64,
    /// The number of those that did not simply pass.
    troubled: u64,
}

#[derive(Default)]
struct WireState {
    to_machine: Direction,
    to_host: Direction,
}

impl WireState {
    fn towards(&mut self, towards: Towards) -> &mut Direction {
        match towards {
            Towards::Machine => &mut self.to_machine,
            Towards::Host => &mut self.to_host,
        }
    }
}

/// The wire. It ends when it is dropped.
pub struct Wire {
    state: Arc<Mutex<WireState>>,
    /// Dropping it stops the thread.
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<io::Result<()>>>,
}

impl Wire {
    /// Joins the host's interface to the machine. The machine gets the returned descriptor: a
    /// stream of frames, each after its length in four bytes.
    ///
    /// # Errors
    /// The system gives no packet socket.
    pub fn new() -> io::Result<(Wire, OwnedFd)> {
        let frames = packet_socket()?;
        let (machine, theirs) = UnixStream::pair()?;
        let (stop, stopped) = UnixStream::pair()?;
        let state = Arc::new(Mutex::new(WireState::default()));
        let of_thread = state.clone();
        let thread = std::thread::Builder::new()
            .name("wire".into())
            .spawn(move || carry(&of_thread, frames, machine, &stopped))?;
        Ok((Wire { state, stop: Some(stop), thread: Some(thread) }, theirs.into()))
    }

    /// From now on, `judge` decides about each RoCE packet in this direction.
    pub fn judge(&self, towards: Towards, judge: impl FnMut(&Seen) -> Fate + Send + 'static) {
        self.lock().towards(towards).judge = Some(Box::new(judge));
    }

    /// As [`Wire::judge`], for packets that `which` selects: `when(n)` decides about the n-th of
    /// them, counted from 1.
    pub fn trouble(
        &self,
        towards: Towards,
        fate: Fate,
        which: impl Fn(&Seen) -> bool + Send + 'static,
        when: impl Fn(u64) -> bool + Send + 'static,
    ) {
        let mut count = 0;
        self.judge(towards, move |seen| {
            if !which(seen) {
                return Fate::Pass;
            }
            count += 1;
            if when(count) { fate } else { Fate::Pass }
        });
    }

    /// Lets all packets pass again, in both directions; returns how many did not simply pass.
    pub fn heal(&self) -> u64 {
        let mut state = self.lock();
        let mut troubled = 0;
        for towards in [Towards::Machine, Towards::Host] {
            let direction = state.towards(towards);
            direction.judge = None;
            troubled += std::mem::take(&mut direction.troubled);
        }
        troubled
    }

    /// The number of RoCE packets so far, to the machine and to the host.
    pub fn packets(&self) -> (u64, u64) {
        let state = self.lock();
        (state.to_machine.packets, state.to_host.packets)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, WireState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(Ok(Err(error))) = self.thread.take().map(JoinHandle::join) {
            eprintln!("the wire ended early: {error}");
        }
    }
}

impl std::fmt::Debug for Wire {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Wire").finish_non_exhaustive()
    }
}

/// A socket that receives all frames that the host's interface sends, and sends frames to it.
fn packet_socket() -> io::Result<File> {
    const ETH_P_ALL: u16 = 3;
    let name = std::ffi::CString::new(WIRE)?;
    // SAFETY: the name is a string that ends with a zero byte.
    let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
    // SAFETY: the call takes no pointers.
    let fd = unsafe { libc::socket(libc::AF_PACKET, kind, 0) };
    if fd < 0 || index == 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor was just opened, and has no other owner.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    // Without this socket's own frames; and with room for many frames, if the system allows that.
    for (level, option, value) in [
        (libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, 1),
        (libc::SOL_SOCKET, libc::SO_RCVBUF, 4 << 20),
        (libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, 4 << 20),
    ] {
        let value: libc::c_int = value;
        // SAFETY: the value is an integer of the length given.
        let rc = unsafe {
            libc::setsockopt(fd, level, option, (&raw const value).cast(), size_of_val(&value) as _)
        };
        if rc != 0 && option == libc::PACKET_IGNORE_OUTGOING && level == libc::SOL_PACKET {
            return Err(io::Error::last_os_error());
        }
    }
    // SAFETY: all fields are integers, for which zeroes are valid.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = ETH_P_ALL.to_be();
    address.sll_ifindex = index.cast_signed();
    // SAFETY: the address is of the length given.
    let rc =
        unsafe { libc::bind(fd, (&raw const address).cast(), size_of::<libc::sockaddr_ll>() as _) };
    if rc == 0 { Ok(File::from(socket)) } else { Err(io::Error::last_os_error()) }
}

/// Carries frames until `stopped` is closed.
fn carry(
    state: &Mutex<WireState>,
    mut ours: File,
    mut machine: UnixStream,
    stopped: &UnixStream,
) -> io::Result<()> {
    let mut frame = vec![0; ROOM];
    let mut incoming = Vec::new();
    loop {
        let ready = {
            let mut fds = [
                PollFd::new(&ours, PollFlags::IN),
                PollFd::new(&machine, PollFlags::IN),
                PollFd::from_borrowed_fd(stopped.as_fd(), PollFlags::IN),
            ];
            poll(&mut fds, None)?;
            fds.map(|fd| !fd.revents().is_empty())
        };
        if ready[2] {
            return Ok(());
        }
        if ready[0] {
            let len = read_frame(&mut ours, &mut frame)?;
            if len > 0 {
                deliver(state, Towards::Machine, &frame[..len], |frame| {
                    machine.write_all(&(frame.len() as u32).to_be_bytes())?;
                    machine.write_all(frame)
                })?;
            }
        }
        if ready[1] {
            let len = match machine.read(&mut frame) {
                Ok(0) => return Ok(()),
                Ok(len) => len,
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(()),
                Err(error) => return Err(error),
            };
            incoming.extend_from_slice(&frame[..len]);
            let mut at = 0;
            while let Some(whole) = first_frame(&incoming[at..]) {
                at += 4 + whole.len();
                deliver(state, Towards::Host, whole, |frame| write_frame(&mut ours, frame))?;
            }
            incoming.drain(..at);
        }
    }
}

/// Reads the next frame of an interface; zero bytes while the interface is down, as it is for a
/// moment when its MTU changes.
fn read_frame(interface: &mut File, frame: &mut [u8]) -> io::Result<usize> {
    match interface.read(frame) {
        Err(error) if error.raw_os_error() == Some(libc::ENETDOWN) => Ok(0),
        read => read,
    }
}

/// Sends a frame to an interface. If there is no room, the frame is too long, or the interface is
/// down, the frame is lost, as on a real wire.
fn write_frame(interface: &mut File, frame: &[u8]) -> io::Result<()> {
    let lost = [libc::ENOBUFS, libc::EMSGSIZE, libc::ENETDOWN, libc::ENXIO];
    match interface.write(frame) {
        Err(error) if !error.raw_os_error().is_some_and(|code| lost.contains(&code)) => Err(error),
        _ => Ok(()),
    }
}

/// The first frame of a stream, if it is complete.
fn first_frame(stream: &[u8]) -> Option<&[u8]> {
    let (len, rest) = stream.split_first_chunk::<4>()?;
    rest.get(..u32::from_be_bytes(*len) as usize)
}

/// Decides about a frame, and sends it as often as that says.
fn deliver(
    state: &Mutex<WireState>,
    towards: Towards,
    frame: &[u8],
    mut send: impl FnMut(&[u8]) -> io::Result<()>,
) -> io::Result<()> {
    let Some(seen) = look(frame) else { return send(frame) };
    let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
    let direction = state.towards(towards);
    direction.packets += 1;
    let fate = direction.judge.as_mut().map_or(Fate::Pass, |judge| judge(&seen));
    if fate != Fate::Pass {
        direction.troubled += 1;
    }
    let late = if fate == Fate::Lose { None } else { direction.delayed.take() };
    if fate == Fate::Delay {
        direction.delayed = Some(frame.to_vec());
    }
    drop(state);
    match fate {
        Fate::Lose | Fate::Delay => {}
        Fate::Pass => send(frame)?,
        Fate::Repeat => {
            send(frame)?;
            send(frame)?;
        }
    }
    late.map_or(Ok(()), |late| send(&late))
}

/// Parses the RoCE packet in a frame: over IPv4 without options, or over IPv6 without extensions.
fn look(frame: &[u8]) -> Option<Seen> {
    let word = |at: usize| Some(u16::from_be_bytes([*frame.get(at)?, *frame.get(at + 1)?]));
    let udp = match word(12)? {
        0x0800 if frame.get(14)? & 15 == 5 && *frame.get(23)? == 17 => 34,
        0x86dd if *frame.get(20)? == 17 => 54,
        _ => return None,
    };
    if word(udp + 2)? != ROCE_PORT {
        return None;
    }
    let bth = frame.get(udp + 8..udp + 20)?;
    let three = |at: usize| u32::from_be_bytes([0, bth[at], bth[at + 1], bth[at + 2]]);
    let opcode = bth[0];
    let qpn = three(5);
    // A datagram to queue pair 1: after BTH and DETH, the MAD's header has the attribute at byte
    // 16.
    let is_cm = opcode == UD_SEND_ONLY && qpn == 1;
    let cm = if is_cm { word(udp + 8 + 12 + 8 + 16) } else { None };
    Some(Seen { opcode, qpn, psn: three(9), cm })
}
