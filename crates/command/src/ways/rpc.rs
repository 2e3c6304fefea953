//! An RPC over TCP: the peer's CPU does the work. Both ends spin, as the card's do.
//!
//! A request is an op-code, the length of its parameters (u32), and the parameters; an answer is
//! one byte (1 for "found"), a length (u32), and the value.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

/// The longest silence of the other end.
const PATIENCE: Duration = Duration::from_secs(20);
/// The longest parameters.
const PARAMS_MAX: usize = 64;
const HEADER: usize = 5;

/// The operation of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Op {
    /// From here on the peer's CPU answers RPCs, and does not drive its card.
    Begin = 1,
    /// The peer's CPU drives its card again.
    End = 2,
    /// Looks up a value of a list: head, key, length of the value.
    List = 3,
    /// Looks up a value of a hash table: the parameters of the kernel GET.
    Get = 4,
    /// Waits until this many streamed messages are counted; answers the estimate, f64.
    Streamed = 5,
    /// The asking end has disconnected (never sent).
    Leave = 6,
    /// Sleeps until the client's next empty SEND; the card works on.
    Sleep = 7,
    /// Keeps the processor busy with this many writers.
    Writers = 8,
    /// Lets this many threads count what is streamed.
    Threads = 9,
}

impl Op {
    fn parse(code: u8) -> Result<Op> {
        let lookups = [Op::Begin, Op::End, Op::List, Op::Get];
        let others = [Op::Streamed, Op::Sleep, Op::Writers, Op::Threads];
        let mut all = lookups.into_iter().chain(others);
        all.find(|op| *op as u8 == code).context("an RPC with an unknown op-code")
    }
}

/// The asking end.
#[derive(Debug)]
pub struct Client {
    stream: TcpStream,
    out: Vec<u8>,
}

impl Client {
    /// Connects.
    pub fn connect(to: SocketAddr) -> Result<Client> {
        let stream = TcpStream::connect(to).context("cannot connect over TCP")?;
        ready(&stream)?;
        Ok(Client { stream, out: Vec::new() })
    }

    /// Asks and waits; appends the value to `out` and returns whether there is one.
    pub fn call(&mut self, op: Op, params: &[u8], out: &mut Vec<u8>) -> Result<bool> {
        ensure!(params.len() <= PARAMS_MAX, "an RPC with long parameters");
        frame(&mut self.out, op as u8, params);
        self.stream.write_all(&self.out).context("cannot send over TCP")?;
        let mut header = [0; HEADER];
        read_spinning(&mut self.stream, &mut header)?;
        let (code, len) = parse_header(header);
        let from = out.len();
        out.resize(from + len, 0);
        read_spinning(&mut self.stream, &mut out[from..])?;
        Ok(code == 1)
    }
}

/// The answering end.
#[derive(Debug)]
pub struct Service {
    stream: TcpStream,
    params: [u8; PARAMS_MAX],
    out: Vec<u8>,
}

impl Service {
    /// Listens on loopback.
    pub fn listen() -> Result<TcpListener> {
        TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("cannot listen over TCP")
    }

    /// Waits for the client.
    pub fn accept(listener: &TcpListener) -> Result<Service> {
        let (stream, _) = listener.accept().context("cannot accept over TCP")?;
        ready(&stream)?;
        Ok(Service { stream, params: [0; PARAMS_MAX], out: Vec::new() })
    }

    /// Takes the next request, if one has come.
    pub fn receive(&mut self) -> Result<Option<(Op, &[u8])>> {
        let mut header = [0; HEADER];
        let first = match self.stream.read(&mut header) {
            Ok(0) => return Ok(Some((Op::Leave, &[]))),
            Ok(len) => len,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
            Err(error) => return Err(error).context("cannot receive over TCP"),
        };
        read_spinning(&mut self.stream, &mut header[first..])?;
        let (code, len) = parse_header(header);
        let params = self.params.get_mut(..len).context("an RPC with long parameters")?;
        read_spinning(&mut self.stream, params)?;
        Ok(Some((Op::parse(code)?, &self.params[..len])))
    }

    /// Answers the call that came last; `None` says that there is no such key.
    pub fn answer(&mut self, value: Option<&[u8]>) -> Result<()> {
        frame(&mut self.out, value.is_some().into(), value.unwrap_or_default());
        self.stream.write_all(&self.out).context("cannot answer over TCP")
    }
}

fn ready(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_nonblocking(true)
}

/// Made in one piece, so that one system call sends it.
fn frame(out: &mut Vec<u8>, code: u8, bytes: &[u8]) {
    out.clear();
    out.push(code);
    out.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
    out.extend_from_slice(bytes);
}

fn parse_header(header: [u8; HEADER]) -> (u8, usize) {
    let [code, len @ ..] = header;
    (code, u32::from_le_bytes(len) as usize)
}

fn read_spinning(stream: &mut TcpStream, mut room: &mut [u8]) -> Result<()> {
    let mut silent = None;
    let mut looks = 0u32;
    while !room.is_empty() {
        match stream.read(room) {
            Ok(0) => bail!("the other end of the TCP connection has gone"),
            Ok(len) => room = &mut room[len..],
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                looks += 1;
                if looks.is_multiple_of(1 << 12) {
                    let since = silent.get_or_insert_with(Instant::now).elapsed();
                    ensure!(since < PATIENCE, "the other end of the TCP connection is silent");
                }
            }
            Err(error) => return Err(error).context("cannot receive over TCP"),
        }
    }
    Ok(())
}

/// The u64 at `at`.
pub(super) fn word(bytes: &[u8], at: usize) -> Result<u64> {
    let word = bytes.get(at..at + 8).context("parameters that are too short")?;
    Ok(u64::from_le_bytes(word.try_into()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn asked_and_answered() {
        let listener = Service::listen().unwrap();
        let mut client = Client::connect(listener.local_addr().unwrap()).unwrap();
        let serving = std::thread::spawn(move || {
            let mut service = Service::accept(&listener).unwrap();
            let mut answered = 0;
            while answered < 2 {
                let Some((op, params)) = service.receive().unwrap() else { continue };
                let value = (op == Op::Get).then(|| params.to_vec());
                service.answer(value.as_deref()).unwrap();
                answered += 1;
            }
        });
        let mut out = vec![9];
        assert!(client.call(Op::Get, b"key", &mut out).unwrap());
        assert!(!client.call(Op::List, b"key", &mut out).unwrap());
        assert_eq!(out, b"\x09key");
        serving.join().unwrap();
    }
}
