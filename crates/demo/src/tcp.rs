//! The same over plain TCP: another process that holds the same file and answers requests for it.
//!
//! A request is an operation and a number, 9 bytes: `R n` asks for n bytes of the file, `W n`
//! announces n bytes, which one byte acknowledges, `P n` announces n ping-pongs of 8 bytes.

use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Args;
use remora::memory::PageAligned;
use serde_json::json;

use super::figures::{Bandwidth, Figures, Latency, ROUNDS, SAMPLES, SAMPLING_TIME, WARM_UP};
use remora_command::{child, output};

const PIECE: usize = 1 << 20;

/// `remora demo-tcp`: the far end.
#[derive(Debug, Args)]
pub struct TcpServer {
    /// The file
    #[arg(long)]
    file: PathBuf,
}

impl TcpServer {
    pub(super) fn run(self) -> Result<()> {
        child::end_with_stdin()?;
        let file = File::open(&self.file)
            .with_context(|| format!("cannot open {}", self.file.display()))?;
        let listener =
            TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("cannot listen on loopback")?;
        output::json_line(&json!({ "address": listener.local_addr()? }))?;
        let (stream, _) = listener.accept().context("no client connects")?;
        stream.set_nodelay(true)?;
        serve(&file, stream).context("the TCP copy broke off")
    }
}

fn serve(file: &File, mut stream: TcpStream) -> Result<()> {
    let mut buffer = PageAligned::new(PIECE);
    let mut written = PageAligned::new(0);
    loop {
        let mut request = [0; 9];
        if let Err(error) = stream.read_exact(&mut request) {
            return if error.kind() == ErrorKind::UnexpectedEof {
                Ok(())
            } else {
                Err(error.into())
            };
        }
        let number = u64::from_be_bytes(request[1..].try_into()?);
        match request[0] {
            b'R' => {
                let mut at = 0;
                while at < number {
                    let piece = &mut buffer[..(number - at).min(PIECE as u64) as usize];
                    file.read_exact_at(piece, at)?;
                    stream.write_all(piece)?;
                    at += piece.len() as u64;
                }
            }
            b'W' => {
                if written.len() != number as usize {
                    written = PageAligned::new(number as usize);
                }
                stream.read_exact(&mut written)?;
                stream.write_all(&[1])?;
            }
            _ => {
                let mut word = [0; 8];
                for _ in 0..number {
                    match stream.read_exact(&mut word) {
                        // The client announces more than it sends, and has had enough.
                        Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(()),
                        read => read?,
                    }
                    stream.write_all(&word)?;
                }
            }
        }
    }
}

/// Moves the file in both directions, compares, and measures.
pub(super) fn run(server: SocketAddr, file: &File, bytes: u64) -> Result<Figures> {
    let mut stream = TcpStream::connect(server).context("cannot connect to the TCP copy")?;
    stream.set_nodelay(true)?;
    let mut expected = PageAligned::new(bytes as usize);
    file.read_exact_at(&mut expected, 0).context("cannot read the file")?;
    let mut copy = PageAligned::new(bytes as usize);
    let (mut reads, mut writes) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        copy.fill(0);
        let start = Instant::now();
        request(&mut stream, b'R', bytes)?;
        stream.read_exact(&mut copy)?;
        reads.push(start.elapsed());
        ensure!(*copy == *expected, "the bytes that came over TCP differ from the file");
    }
    for _ in 0..ROUNDS {
        let start = Instant::now();
        request(&mut stream, b'W', bytes)?;
        stream.write_all(&copy)?;
        stream.read_exact(&mut [0])?;
        writes.push(start.elapsed());
    }
    let ping_pong = ping_pongs(&mut stream)?;
    let (read, write) = (Bandwidth::of(bytes, reads), Bandwidth::of(bytes, writes));
    Ok(Figures { read_8b: ping_pong, write_8b: ping_pong, read, write })
}

fn request(stream: &mut TcpStream, operation: u8, number: u64) -> io::Result<()> {
    let mut bytes = [operation; 9];
    bytes[1..].copy_from_slice(&number.to_be_bytes());
    stream.write_all(&bytes)
}

/// Sends 8 bytes and waits for 8, as the client of the card does: this end polls, the other sleeps.
fn ping_pongs(stream: &mut TcpStream) -> Result<Latency> {
    request(stream, b'P', u64::MAX)?;
    stream.set_nonblocking(true)?;
    let mut samples: Vec<Duration> = Vec::with_capacity(SAMPLES);
    let begin = Instant::now();
    for i in 0..WARM_UP + SAMPLES {
        let start = Instant::now();
        stream.write_all(&[7; 8])?;
        let (mut word, mut filled) = ([0; 8], 0);
        while filled < word.len() {
            match stream.read(&mut word[filled..]) {
                Ok(0) => return Err(io::Error::from(ErrorKind::UnexpectedEof).into()),
                Ok(len) => filled += len,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error.into()),
            }
        }
        if i >= WARM_UP {
            samples.push(start.elapsed());
        }
        if begin.elapsed() > SAMPLING_TIME {
            break;
        }
    }
    Ok(Latency::of(samples))
}
