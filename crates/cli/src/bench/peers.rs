//! The peers: what plain sockets achieve on the same two cores, with programs that are as good as
//! plain programs can be.
//!
//! Each is two processes that are pinned to a core each and spin instead of sleeping. The hidden
//! command `remora bench peer KIND` runs one and prints its figure as JSON; it starts itself a
//! second time for the other end.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use clap::{Args, ValueEnum};
use remora::memory::PageAligned;
use rustix::net::sockopt::{set_socket_recv_buffer_size, set_socket_send_buffer_size};
use serde::{Deserialize, Serialize};

use crate::child::{self, Helper};
use crate::output;

/// Round trips between looks at the clock.
const ROUNDS: u32 = 256;
/// The longest wait for the other end.
const PATIENCE: Duration = Duration::from_secs(5);
/// Bytes of a datagram whose rate is measured.
const MESSAGE: usize = 64;

/// The kind of peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(super) enum Kind {
    /// 8 bytes back and forth over UDP: half a round trip in µs
    UdpLatency,
    /// Messages back and forth over TCP: half a round trip in µs
    TcpLatency,
    /// As `tcp-latency`, by threads that sleep
    TcpSleeping,
    /// One TCP stream: Gb/s
    TcpBandwidth,
    /// 64-byte datagrams, one system call each: millions received a second
    UdpRate,
}

/// The hidden command `remora bench peer`.
#[derive(Debug, Args)]
pub(super) struct Peer {
    #[arg(value_enum)]
    kind: Kind,
    /// Seconds to measure
    #[arg(long, default_value_t = 0.3)]
    seconds: f64,
    /// Bytes of a TCP socket's buffers; 0: the system's choice
    #[arg(long, default_value_t = 0)]
    buffer: usize,
    /// Bytes of a TCP write, and of the buffer for a read
    #[arg(long, default_value_t = 1 << 20)]
    write: usize,
    /// Be the other end
    #[arg(long)]
    other: bool,
}

/// What a peer prints.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Figure {
    pub(super) value: f64,
}

impl Peer {
    /// Runs one end.
    pub(super) fn run(&self) -> Result<()> {
        if self.other {
            child::pin(1)?;
            return match self.kind {
                Kind::UdpLatency => udp_echo(),
                Kind::TcpLatency => tcp_echo(self.write, true),
                Kind::TcpSleeping => tcp_echo(self.write, false),
                Kind::TcpBandwidth => tcp_sink(self.buffer, self.write),
                Kind::UdpRate => udp_sink(Duration::from_secs_f64(self.seconds)),
            };
        }
        let name = self.kind.to_possible_value().context("a kind without a name")?;
        let mut args: Vec<String> =
            ["bench", "peer", name.get_name(), "--other"].map(Into::into).into();
        args.extend(["--seconds".into(), self.seconds.to_string()]);
        args.extend(["--buffer".into(), self.buffer.to_string()]);
        args.extend(["--write".into(), self.write.to_string()]);
        let mut other = Helper::start(args)?;
        // After the other end is started, which would inherit it.
        child::pin(0)?;
        let to: SocketAddr = other.line()?.parse().context("the other end named no address")?;
        let time = Duration::from_secs_f64(self.seconds);
        let value = match self.kind {
            Kind::UdpLatency => udp_ping(to, time)?,
            Kind::TcpLatency => tcp_ping(to, time, self.write, true)?,
            Kind::TcpSleeping => tcp_ping(to, time, self.write, false)?,
            Kind::TcpBandwidth => tcp_source(to, time, self.buffer, self.write)?,
            Kind::UdpRate => udp_source(to, other)?,
        };
        output::json_line(&Figure { value })
    }
}

/// A non-blocking socket on loopback; prints its address if `tell`.
fn udp(tell: bool) -> Result<UdpSocket> {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).context("cannot bind a UDP socket")?;
    socket.set_nonblocking(true)?;
    // As much as a program without privileges gets; on failure the system's default stays.
    set_socket_recv_buffer_size(&socket, 16 << 20).ok();
    if tell {
        announce(socket.local_addr()?)?;
    }
    Ok(socket)
}

fn announce(address: SocketAddr) -> Result<()> {
    println!("{address}");
    std::io::stdout().flush()?;
    child::end_with_stdin()
}

/// Receives one datagram, spinning; fails after a long silence.
fn spin(socket: &UdpSocket, bytes: &mut [u8]) -> Result<(usize, SocketAddr)> {
    let mut silent = None;
    loop {
        for _ in 0..1 << 14 {
            match socket.recv_from(bytes) {
                Ok(received) => return Ok(received),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error).context("cannot receive over UDP"),
            }
        }
        let since = silent.get_or_insert_with(Instant::now).elapsed();
        ensure!(since < PATIENCE, "the UDP peer lost a datagram or is silent");
    }
}

fn udp_ping(to: SocketAddr, time: Duration) -> Result<f64> {
    let socket = udp(false)?;
    let mut bytes = [1; 8];
    let mut samples = Vec::new();
    let start = Instant::now();
    while start.elapsed() < time {
        for _ in 0..ROUNDS {
            let before = Instant::now();
            socket.send_to(&bytes, to).context("cannot send over UDP")?;
            spin(&socket, &mut bytes)?;
            samples.push(before.elapsed().as_nanos() as u64 / 2);
        }
    }
    samples.sort_unstable();
    Ok(samples[samples.len() / 2] as f64 / 1e3)
}

fn udp_echo() -> Result<()> {
    let socket = udp(true)?;
    let mut bytes = [0; 8];
    loop {
        let (len, from) = match spin(&socket, &mut bytes) {
            Ok(received) => received,
            // Before the first datagram and after the last, silence is normal.
            Err(_) => continue,
        };
        socket.send_to(&bytes[..len], from).context("cannot send over UDP")?;
    }
}

fn tcp_buffers(stream: &TcpStream, bytes: usize) -> Result<()> {
    stream.set_nodelay(true)?;
    if bytes > 0 {
        set_socket_send_buffer_size(stream, bytes)?;
        set_socket_recv_buffer_size(stream, bytes)?;
    }
    Ok(())
}

/// A stream that waits in one of two ways: a spinning one tries again and again.
struct Waiting {
    stream: TcpStream,
}

impl Waiting {
    fn new(stream: TcpStream, spins: bool) -> Result<Waiting> {
        stream.set_nodelay(true)?;
        stream.set_nonblocking(spins)?;
        Ok(Waiting { stream })
    }
}

impl Read for Waiting {
    fn read(&mut self, bytes: &mut [u8]) -> std::io::Result<usize> {
        loop {
            match self.stream.read(bytes) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                read => return read,
            }
        }
    }
}

impl Write for Waiting {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        loop {
            match self.stream.write(bytes) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                written => return written,
            }
        }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.stream.flush()
    }
}

fn tcp_ping(to: SocketAddr, time: Duration, bytes: usize, spins: bool) -> Result<f64> {
    let stream = TcpStream::connect(to).context("cannot connect over TCP")?;
    let mut stream = Waiting::new(stream, spins)?;
    let mut bytes = vec![7; bytes];
    let mut samples = Vec::new();
    let start = Instant::now();
    while start.elapsed() < time {
        let before = Instant::now();
        stream.write_all(&bytes).context("cannot send over TCP")?;
        stream.read_exact(&mut bytes).context("cannot receive over TCP")?;
        samples.push(before.elapsed().as_nanos() as u64 / 2);
    }
    samples.sort_unstable();
    Ok(samples[samples.len() / 2] as f64 / 1e3)
}

fn tcp_echo(bytes: usize, spins: bool) -> Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("cannot listen over TCP")?;
    announce(listener.local_addr()?)?;
    let (stream, _) = listener.accept().context("cannot accept over TCP")?;
    let mut stream = Waiting::new(stream, spins)?;
    let mut bytes = vec![0; bytes];
    // The end of the stream is the end of the test.
    while stream.read_exact(&mut bytes).is_ok() {
        stream.write_all(&bytes).context("cannot send over TCP")?;
    }
    wait_for_the_end()
}

fn tcp_source(to: SocketAddr, time: Duration, buffer: usize, write: usize) -> Result<f64> {
    let mut stream = TcpStream::connect(to).context("cannot connect over TCP")?;
    tcp_buffers(&stream, buffer)?;
    let mut bytes = PageAligned::new(write);
    bytes.fill(7);
    let mut sent = 0u64;
    let start = Instant::now();
    while start.elapsed() < time {
        stream.write_all(&bytes).context("cannot send over TCP")?;
        sent += write as u64;
    }
    // The other end confirms when everything has arrived.
    stream.shutdown(std::net::Shutdown::Write)?;
    stream.read_exact(&mut [0]).context("the TCP peer did not confirm")?;
    Ok(sent as f64 * 8.0 / start.elapsed().as_secs_f64() / 1e9)
}

fn tcp_sink(buffer: usize, read: usize) -> Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("cannot listen over TCP")?;
    if buffer > 0 {
        // Set before the connection comes, which takes its window from it.
        set_socket_recv_buffer_size(&listener, buffer)?;
    }
    announce(listener.local_addr()?)?;
    let (mut stream, _) = listener.accept().context("cannot accept over TCP")?;
    tcp_buffers(&stream, buffer)?;
    let mut bytes = PageAligned::new(read);
    while stream.read(&mut bytes).context("cannot receive over TCP")? > 0 {}
    stream.write_all(&[1])?;
    wait_for_the_end()
}

/// Sends as fast as it can; the figure is the number that the other end receives a second.
fn udp_source(to: SocketAddr, mut other: Helper) -> Result<f64> {
    let socket = udp(false)?;
    socket.connect(to)?;
    let told = crate::thread::spawn("figure", move || other.line())?;
    while !told.is_finished() {
        for _ in 0..ROUNDS {
            send(&socket, &[7; MESSAGE])?;
        }
    }
    let figure = told.join().map_err(|_| anyhow!("a thread panicked"))??;
    figure.parse().context("the other end printed no figure")
}

/// Sends one datagram, and tries again if the socket is full. When the other end has counted
/// enough, its socket is closed.
fn send(socket: &UdpSocket, bytes: &[u8]) -> Result<()> {
    loop {
        match socket.send(bytes) {
            Ok(_) => return Ok(()),
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => return Ok(()),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error).context("cannot send over UDP"),
        }
    }
}

fn udp_sink(time: Duration) -> Result<()> {
    let socket = udp(true)?;
    let mut bytes = [0; MESSAGE];
    spin(&socket, &mut bytes)?;
    let start = Instant::now();
    let mut received = 0u64;
    while start.elapsed() < time {
        for _ in 0..ROUNDS {
            spin(&socket, &mut bytes)?;
        }
        received += u64::from(ROUNDS);
    }
    println!("{}", received as f64 / start.elapsed().as_secs_f64() / 1e6);
    std::io::stdout().flush()?;
    wait_for_the_end()
}

/// Sleeps; another thread ends the process when standard input closes.
fn wait_for_the_end() -> Result<()> {
    std::thread::sleep(Duration::from_secs(60));
    bail!("the process that started this one did not end it")
}
