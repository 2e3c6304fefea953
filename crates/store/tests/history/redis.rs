//! Operations over Redis' protocol.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use super::value::{appended, bytes_of, value_of};
use super::{Op, Ret};

/// A connection over TCP.
pub(crate) struct Line(BufReader<TcpStream>);

impl Line {
    /// A connection on which an answer may take so long.
    pub(crate) fn new(at: SocketAddr, patience: Duration) -> io::Result<Line> {
        let stream = TcpStream::connect_timeout(&at, patience)?;
        stream.set_read_timeout(Some(patience))?;
        stream.set_nodelay(true)?;
        Ok(Line(BufReader::new(stream)))
    }

    /// Sends a request; returns the first line of the answer.
    pub(crate) fn ask(&mut self, request: &[u8]) -> io::Result<String> {
        self.0.get_mut().write_all(request)?;
        self.line()
    }

    /// The next line of an answer.
    pub(crate) fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        if self.0.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(line.trim_end().to_owned())
    }

    /// The value of so many bytes that follows, with the end of its line.
    pub(crate) fn value(&mut self, len: &str) -> io::Result<u32> {
        let mut bytes = vec![0; len.parse::<usize>().expect("a length") + 2];
        self.0.read_exact(&mut bytes)?;
        Ok(value_of(&bytes[..bytes.len() - 2]))
    }
}

/// A client of Redis.
pub(crate) struct Redis(pub(crate) Line);

impl Redis {
    /// Carries out an operation. The inner error is another answer than the operation has: why it
    /// was not carried out, or not for sure.
    pub(crate) fn ask(&mut self, key: &str, op: Op) -> io::Result<Result<Ret, String>> {
        let key = key.as_bytes();
        let answer = match op {
            Op::Get => self.command(&[b"GET", key]),
            Op::Set(value) => self.command(&[b"SET", key, &bytes_of(value)]),
            Op::Delete => self.command(&[b"DEL", key]),
            Op::Swap(old, new) => {
                self.command(&[b"SET", key, &bytes_of(new), b"IFEQ", &bytes_of(old)])
            }
            Op::Add(1) => self.command(&[b"INCR", key]),
            Op::Add(more) => self.command(&[b"INCRBY", key, more.to_string().as_bytes()]),
            Op::Append(more) => self.command(&[b"APPEND", key, &appended(more)]),
            Op::Flush => self.command(&[b"FLUSHALL"]),
        }?;
        Ok(Ok(match (op, answer.as_str()) {
            (Op::Get, "$-1") => Ret::Value(None),
            (Op::Get, len) if len.starts_with('$') => Ret::Value(Some(self.0.value(&len[1..])?)),
            (Op::Set(_) | Op::Flush, "+OK") => Ret::Done,
            (Op::Append(more), len) if len.starts_with(':') => {
                assert!(len[1..].parse::<u32>().unwrap() >= more, "{len}");
                Ret::Done
            }
            (Op::Add(_), sum) if sum.starts_with(':') => Ret::Sum(sum[1..].parse().unwrap()),
            (Op::Delete, ":1") | (Op::Swap(..), "+OK") => Ret::Did(true),
            (Op::Delete, ":0") | (Op::Swap(..), "$-1") => Ret::Did(false),
            _ => return Ok(Err(answer)),
        }))
    }

    fn command(&mut self, words: &[&[u8]]) -> io::Result<String> {
        let mut request = format!("*{}\r\n", words.len()).into_bytes();
        for word in words {
            request.extend(format!("${}\r\n", word.len()).bytes());
            request.extend_from_slice(word);
            request.extend(b"\r\n");
        }
        self.0.ask(&request)
    }
}
