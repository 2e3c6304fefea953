//! The way from the primary that gives slots away to the one that gets them: its Redis front, with
//! `CLUSTER TAKE | RETAKE | OWN | IMPORT`. One session has one number, and one connection.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use remora_store::front::slots::{Range, Ticket};

use crate::migration::Item;

/// How long the other group may take for an answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Bytes of a request at most, but for the item that comes last.
const REQUEST: usize = 4 << 20;
/// The longest answer, in bytes.
const ANSWER: u64 = 4096;

/// A session with another group's primary.
#[derive(Debug)]
pub(crate) struct Session {
    stream: BufReader<TcpStream>,
    from: String,
    ticket: String,
}

impl Session {
    /// Connects.
    pub(crate) fn open(
        to: SocketAddr,
        password: Option<&str>,
        from: &str,
        ticket: Ticket,
    ) -> Result<Session, String> {
        let connected = TcpStream::connect_timeout(&to, PATIENCE).and_then(|stream| {
            stream.set_read_timeout(Some(PATIENCE))?;
            stream.set_write_timeout(Some(PATIENCE))?;
            stream.set_nodelay(true)?;
            Ok(stream)
        });
        let stream = connected.map_err(|error| format!("{to} cannot be reached: {error}"))?;
        let (from, ticket) = (from.to_owned(), ticket.to_string());
        let mut session = Session { stream: BufReader::new(stream), from, ticket };
        if let Some(password) = password {
            session.ask(&[b"AUTH", password.as_bytes()])?;
        }
        Ok(session)
    }

    /// The other group is to be ready for keys of these slots.
    pub(crate) fn take(&mut self, ranges: &[Range]) -> Result<(), String> {
        self.transfer(b"TAKE", ranges)
    }

    /// The same, for those of these slots that it does not own already.
    pub(crate) fn retake(&mut self, ranges: &[Range]) -> Result<(), String> {
        self.transfer(b"RETAKE", ranges)
    }

    /// The other group is to own these slots.
    pub(crate) fn own(&mut self, ranges: &[Range]) -> Result<(), String> {
        self.transfer(b"OWN", ranges)
    }

    fn transfer(&mut self, step: &[u8], ranges: &[Range]) -> Result<(), String> {
        let ranges: Vec<_> = ranges.iter().map(Range::to_string).collect();
        let (from, ticket) = (self.from.clone(), self.ticket.clone());
        let mut words = vec![&b"CLUSTER"[..], step, from.as_bytes(), ticket.as_bytes()];
        words.extend(ranges.iter().map(String::as_bytes));
        self.ask(&words)
    }

    /// Sends keys. When this returns, the other group has them for good.
    pub(crate) fn import(&mut self, items: &[Item]) -> Result<(), String> {
        let mut rest = items;
        while !rest.is_empty() {
            let mut bytes = 0;
            let fit = rest.iter().take_while(|item| {
                let fits = bytes < REQUEST;
                bytes += item.key.len() + item.value.len();
                fits
            });
            let (now, later) = rest.split_at(fit.count());
            self.import_some(now)?;
            rest = later;
        }
        Ok(())
    }

    fn import_some(&mut self, items: &[Item]) -> Result<(), String> {
        let number = |item: &Item| {
            [u64::from(item.flags).to_string(), item.expires_ms.unwrap_or(0).to_string()]
        };
        let numbers: Vec<_> = items.iter().map(number).collect();
        let ticket = self.ticket.clone();
        let mut words = vec![&b"CLUSTER"[..], b"IMPORT", ticket.as_bytes()];
        for (item, [flags, expires]) in items.iter().zip(&numbers) {
            words.extend([&item.key[..], flags.as_bytes(), expires.as_bytes(), &item.value[..]]);
        }
        self.ask(&words)
    }

    /// Sends a command, whose answer has to be `+OK`.
    fn ask(&mut self, words: &[&[u8]]) -> Result<(), String> {
        let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
        for word in words {
            bytes.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
            bytes.extend_from_slice(word);
            bytes.extend_from_slice(b"\r\n");
        }
        let gone = |error: std::io::Error| format!("the other group’s primary has gone: {error}");
        self.stream.get_mut().write_all(&bytes).map_err(gone)?;
        let mut line = Vec::new();
        self.stream.by_ref().take(ANSWER).read_until(b'\n', &mut line).map_err(gone)?;
        match line.trim_ascii() {
            b"+OK" => Ok(()),
            b"" => Err("the other group’s primary has ended the connection".to_owned()),
            other => {
                let said = String::from_utf8_lossy(other).into_owned();
                Err(format!("the other group’s primary says: {}", remora::printable(&said)))
            }
        }
    }
}
