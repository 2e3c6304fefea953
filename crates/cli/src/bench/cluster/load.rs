//! A client by Redis' protocol: requests on several connections at once, from one thread.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::draws::Draws;

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(20);
/// Keys that are set before an answer is read.
const TOGETHER: u64 = 200;

/// What is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Ask {
    Get,
    Put,
    /// A put, and one replica's word that it has it, and all that came before.
    PutAndWait,
    Delete,
}

/// Keys and values.
#[derive(Clone, Copy, Debug)]
pub(super) struct Work {
    pub(super) keys: u64,
    /// Bytes of a value.
    pub(super) value: usize,
}

/// The connections to a server.
#[derive(Debug)]
pub(super) struct Load {
    streams: Vec<TcpStream>,
    draws: Draws,
    sent: Vec<u8>,
    expected: Vec<u8>,
    answer: Vec<u8>,
}

pub(super) fn key(number: u64) -> String {
    format!("key:{number:012}")
}

/// Adds a request, and the answer to it. All values consist of the same letter.
fn add(ask: Ask, number: u64, value: usize, request: &mut Vec<u8>, answer: &mut Vec<u8>) {
    let key = key(number);
    let words: &[&[u8]] = match ask {
        Ask::Get => &[b"GET", key.as_bytes()],
        Ask::Put | Ask::PutAndWait => &[b"SET", key.as_bytes(), &vec![b'v'; value]],
        Ask::Delete => &[b"DEL", key.as_bytes()],
    };
    request.extend_from_slice(format!("*{}\r\n", words.len()).as_bytes());
    for word in words {
        request.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        request.extend_from_slice(word);
        request.extend_from_slice(b"\r\n");
    }
    match ask {
        Ask::Get => {
            answer.extend_from_slice(format!("${value}\r\n").as_bytes());
            answer.resize(answer.len() + value, b'v');
            answer.extend_from_slice(b"\r\n");
        }
        Ask::Put => answer.extend_from_slice(b"+OK\r\n"),
        Ask::PutAndWait => {
            request.extend_from_slice(b"*3\r\n$4\r\nWAIT\r\n$1\r\n1\r\n$1\r\n0\r\n");
            answer.extend_from_slice(b"+OK\r\n:1\r\n");
        }
        Ask::Delete => answer.extend_from_slice(b":1\r\n"),
    }
}

/// Requests that are sent together, of which the last one waits for all: a connection that waits
/// takes no further request.
fn wait_once(drawn: Vec<(Ask, u64)>) -> impl Iterator<Item = (Ask, u64)> {
    let last = drawn.len().saturating_sub(1);
    drawn.into_iter().enumerate().map(move |(index, (ask, number))| match ask {
        Ask::PutAndWait if index < last => (Ask::Put, number),
        ask => (ask, number),
    })
}

impl Load {
    /// Connects so many times.
    pub(super) fn connect(at: SocketAddr, connections: usize) -> Result<Load> {
        let connect = |_| {
            let stream = TcpStream::connect(at).context("no server answers")?;
            stream.set_nodelay(true)?;
            stream.set_nonblocking(true)?;
            Ok(stream)
        };
        let streams = (0..connections).map(connect).collect::<Result<_>>()?;
        let (sent, expected, answer) = (Vec::new(), Vec::new(), Vec::new());
        Ok(Load { streams, draws: Draws::new(3), sent, expected, answer })
    }

    /// Sets all keys.
    pub(super) fn fill(&mut self, work: Work) -> Result<()> {
        for first in (0..work.keys).step_by(TOGETHER as usize) {
            let numbers = first..work.keys.min(first + TOGETHER);
            self.exchange(0, numbers.map(|number| (Ask::Put, number)), work.value)?;
        }
        Ok(())
    }

    /// The median time of so many requests, one after another, in µs: of keys one after another
    /// from `first` on.
    pub(super) fn latency(
        &mut self,
        ask: Ask,
        work: Work,
        first: u64,
        calls: usize,
    ) -> Result<f64> {
        let mut times = Vec::with_capacity(calls);
        for number in (first..).take(calls) {
            let start = Instant::now();
            self.exchange(0, [(ask, number)].into_iter(), work.value)?;
            times.push(start.elapsed().as_nanos() as f64 / 1e3);
        }
        Ok(super::super::figure::median(&times))
    }

    /// Thousands of requests a second, of which this part are `asks.1`, and the others `asks.0`:
    /// so many in flight on each connection, and about so many in all.
    pub(super) fn rate(
        &mut self,
        asks: (Ask, Ask, f64),
        work: Work,
        in_flight: usize,
        requests: usize,
    ) -> Result<f64> {
        let turns = requests.div_ceil(self.streams.len() * in_flight);
        let start = Instant::now();
        for _ in 0..turns {
            let mut expected = Vec::with_capacity(self.streams.len());
            for stream in 0..self.streams.len() {
                let draw = |draws: &mut Draws| {
                    let ask = if draws.happens(asks.2) { asks.1 } else { asks.0 };
                    (ask, draws.number() % work.keys)
                };
                let drawn: Vec<_> = (0..in_flight).map(|_| draw(&mut self.draws)).collect();
                self.send(stream, wait_once(drawn), work.value)?;
                expected.push(std::mem::take(&mut self.expected));
            }
            for (stream, expected) in expected.into_iter().enumerate() {
                self.expected = expected;
                self.receive(stream)?;
            }
        }
        let done = (turns * self.streams.len() * in_flight) as f64;
        Ok(done / start.elapsed().as_secs_f64() / 1e3)
    }

    fn exchange(
        &mut self,
        stream: usize,
        asks: impl Iterator<Item = (Ask, u64)>,
        value: usize,
    ) -> Result<()> {
        self.send(stream, asks, value)?;
        self.receive(stream)
    }

    fn send(
        &mut self,
        stream: usize,
        asks: impl Iterator<Item = (Ask, u64)>,
        value: usize,
    ) -> Result<()> {
        self.sent.clear();
        self.expected.clear();
        for (ask, number) in asks {
            add(ask, number, value, &mut self.sent, &mut self.expected);
        }
        let (mut left, start) = (&self.sent[..], Instant::now());
        while !left.is_empty() {
            match self.streams[stream].write(left) {
                Ok(count) => left = &left[count..],
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    ensure!(start.elapsed() < PATIENCE, "a server takes no requests");
                }
                Err(error) => return Err(error).context("cannot send a request"),
            }
        }
        Ok(())
    }

    fn receive(&mut self, stream: usize) -> Result<()> {
        self.answer.resize(self.expected.len(), 0);
        let (mut got, start) = (0, Instant::now());
        while got < self.answer.len() {
            match self.streams[stream].read(&mut self.answer[got..]) {
                Ok(0) => bail!("a server has closed a connection"),
                Ok(count) => got += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    // Another answer may be shorter than the one that is waited for.
                    let as_wanted = self.expected.starts_with(&self.answer[..got]);
                    ensure!(as_wanted, self.complaint(got));
                    ensure!(start.elapsed() < PATIENCE, "a server does not answer");
                }
                Err(error) => return Err(error).context("cannot read an answer"),
            }
        }
        ensure!(self.answer == self.expected, self.complaint(got));
        Ok(())
    }

    fn complaint(&self, got: usize) -> String {
        let start = &self.answer[..got.min(80)];
        format!("a server answers something else: {}", String::from_utf8_lossy(start).trim())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_goes_with_its_answer() {
        let (mut request, mut answer) = (Vec::new(), Vec::new());
        add(Ask::PutAndWait, 7, 2, &mut request, &mut answer);
        let text = String::from_utf8(request).unwrap();
        assert!(text.starts_with("*3\r\n$3\r\nSET\r\n$16\r\nkey:000000000007\r\n$2\r\nvv\r\n"));
        assert!(text.ends_with("$4\r\nWAIT\r\n$1\r\n1\r\n$1\r\n0\r\n"), "{text}");
        assert_eq!(answer, b"+OK\r\n:1\r\n");
        answer.clear();
        add(Ask::Get, 7, 3, &mut Vec::new(), &mut answer);
        assert_eq!(answer, b"$3\r\nvvv\r\n");
    }

    #[test]
    fn of_puts_that_go_together_the_last_one_waits() {
        let asks: Vec<_> = wait_once(vec![(Ask::PutAndWait, 1); 3]).map(|(ask, _)| ask).collect();
        assert_eq!(asks, [Ask::Put, Ask::Put, Ask::PutAndWait]);
    }
}
