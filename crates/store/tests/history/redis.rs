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

/// How long a key is to be there, in seconds: no test waits for its end.
const LATER_S: &[u8] = b"1000000";

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
            Op::End(true) => self.command(&[b"EXPIRE", key, LATER_S]),
            Op::End(false) => self.command(&[b"PERSIST", key]),
            Op::GetEnd(true) => self.command(&[b"GETEX", key, b"EX", LATER_S]),
            Op::GetEnd(false) => self.command(&[b"GETEX", key, b"PERSIST"]),
            Op::HasEnd => self.command(&[b"TTL", key]),
        }?;
        Ok(Ok(match (op, answer.as_str()) {
            (Op::Get | Op::GetEnd(_), "$-1") => Ret::Value(None),
            (Op::Get | Op::GetEnd(_), len) if len.starts_with('$') => {
                Ret::Value(Some(self.0.value(&len[1..])?))
            }
            (Op::HasEnd, ":-2") => Ret::Value(None),
            (Op::HasEnd, seconds) if seconds.starts_with(':') => {
                Ret::Value(Some(u32::from(seconds != ":-1")))
            }
            (Op::Set(_) | Op::Flush, "+OK") => Ret::Done,
            (Op::Append(more), len) if len.starts_with(':') => {
                assert!(len[1..].parse::<u32>().unwrap() >= more, "{len}");
                Ret::Done
            }
            (Op::Add(_), sum) if sum.starts_with(':') => Ret::Sum(sum[1..].parse().unwrap()),
            (Op::Delete | Op::End(_), ":1") | (Op::Swap(..), "+OK") => Ret::Did(true),
            (Op::Delete | Op::End(_), ":0") | (Op::Swap(..), "$-1") => Ret::Did(false),
            _ => return Ok(Err(answer)),
        }))
    }

    /// The same for two keys of one slot, which have one value at any time: read together, and set
    /// together in one of two ways.
    ///
    /// # Panics
    /// If they are seen with two values.
    pub(crate) fn ask_pair(&mut self, key: &str, op: Op) -> io::Result<Result<Ret, String>> {
        let names = pair_of(key);
        let [one, other] = [names[0].as_bytes(), names[1].as_bytes()];
        let value = if let Op::Set(value) = op { bytes_of(value) } else { Vec::new() };
        let answer = match op {
            Op::Get => self.command(&[b"MGET", one, other])?,
            Op::Set(even) if even.is_multiple_of(2) => {
                self.command(&[b"MSET", one, &value, other, &value])?
            }
            Op::Set(_) => return self.transact(&[[b"SET", one, &value], [b"SET", other, &value]]),
            _ => panic!("{op:?} is nothing for two keys"),
        };
        match (op, answer.as_str()) {
            (Op::Get, "*2") => {
                let [one, other] = [self.nullable()?, self.nullable()?];
                assert_eq!(one, other, "{key}: a part of what was set together");
                Ok(Ok(Ret::Value(one)))
            }
            (Op::Set(_), "+OK") => Ok(Ok(Ret::Done)),
            _ => Ok(Err(answer)),
        }
    }

    /// A transaction whose commands are all answered with OK.
    fn transact(&mut self, commands: &[[&[u8]; 3]]) -> io::Result<Result<Ret, String>> {
        let mut refused = None;
        let mut expect = |answer: String, expected: &str| {
            if answer != expected {
                refused.get_or_insert(answer);
            }
        };
        expect(self.command(&[b"MULTI"])?, "+OK");
        for command in commands {
            expect(self.command(command)?, "+QUEUED");
        }
        let answer = self.command(&[b"EXEC"])?;
        if answer == format!("*{}", commands.len()) {
            for _ in commands {
                expect(self.0.line()?, "+OK");
            }
        } else {
            expect(answer, "");
        }
        Ok(refused.map_or(Ok(Ret::Done), Err))
    }

    /// A value of an array.
    fn nullable(&mut self) -> io::Result<Option<u32>> {
        let len = self.0.line()?;
        Ok(if len == "$-1" { None } else { Some(self.0.value(&len[1..])?) })
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

/// The two keys of one slot that a name stands for.
pub(crate) fn pair_of(key: &str) -> [String; 2] {
    ["one", "other"].map(|which| format!("{{{key}}}.{which}"))
}
