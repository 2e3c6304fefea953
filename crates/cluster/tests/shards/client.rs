//! A client of Redis Cluster that knows nothing but where it began.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io::{BufRead, BufReader, Error, Result, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// How long anything may take on a busy machine; nothing is asserted about it.
const PATIENCE: Duration = Duration::from_secs(60);

/// A reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    Text(String),
    Number(i64),
    Null,
    Error(String),
    Array(Vec<Reply>),
}

#[derive(Debug)]
pub(crate) struct Client {
    home: Vec<SocketAddr>,
    streams: BTreeMap<SocketAddr, BufReader<TcpStream>>,
}

impl Client {
    pub(crate) fn new(home: SocketAddr) -> Client {
        Client::with(vec![home])
    }

    /// A client that knows these nodes: it goes to the next one when one does not answer.
    pub(crate) fn with(home: Vec<SocketAddr>) -> Client {
        Client { home, streams: BTreeMap::new() }
    }

    /// Asks until there is an answer, wherever that is. What was asked may be carried out twice.
    pub(crate) fn ask(&mut self, words: &[&str]) -> Reply {
        let start = Instant::now();
        let (mut to, mut is_asking) = (self.home[0], false);
        loop {
            assert!(start.elapsed() < PATIENCE, "nobody answers {words:?}");
            let said = self.ask_at(to, words, std::mem::take(&mut is_asking));
            let Ok(Reply::Error(reason)) = &said else {
                if let Ok(reply) = said {
                    return reply;
                }
                // It has gone, or its primary has: perhaps another one knows.
                self.streams.remove(&to);
                self.home.rotate_left(1);
                to = self.home[0];
                std::thread::sleep(Duration::from_millis(5));
                continue;
            };
            let parts: Vec<_> = reason.split(' ').collect();
            match parts[..] {
                ["MOVED", _, at] => to = at.parse().unwrap(),
                ["ASK", _, at] => (to, is_asking) = (at.parse().unwrap(), true),
                ["CROSSSLOT", ..] => return said.unwrap(),
                // The change may have been made or not: it is asked for again.
                _ => {
                    self.home.rotate_left(1);
                    to = self.home[0];
                    std::thread::sleep(Duration::from_millis(2));
                }
            }
        }
    }

    /// Asks the first node only.
    pub(crate) fn direct(&mut self, words: &[&str]) -> Result<Reply> {
        self.ask_at(self.home[0], words, false)
    }

    fn ask_at(&mut self, to: SocketAddr, words: &[&str], is_asking: bool) -> Result<Reply> {
        let stream = match self.streams.entry(to) {
            Entry::Occupied(there) => there.into_mut(),
            Entry::Vacant(place) => {
                let stream = TcpStream::connect(to)?;
                stream.set_read_timeout(Some(PATIENCE))?;
                stream.set_nodelay(true)?;
                place.insert(BufReader::new(stream))
            }
        };
        let mut bytes = String::new();
        if is_asking {
            bytes += "*1\r\n$6\r\nASKING\r\n";
        }
        bytes += &format!("*{}\r\n", words.len());
        words.iter().for_each(|word| bytes += &format!("${}\r\n{word}\r\n", word.len()));
        stream.get_mut().write_all(bytes.as_bytes())?;
        if is_asking {
            read(stream)?;
        }
        read(stream)
    }
}

fn read(stream: &mut impl BufRead) -> Result<Reply> {
    let mut line = String::new();
    stream.read_line(&mut line)?;
    let line = line.trim_end();
    let Some(kind) = line.chars().next() else { return Err(Error::other("the end")) };
    let rest = &line[1..];
    let number = || rest.parse::<i64>().map_err(Error::other);
    Ok(match kind {
        '+' => Reply::Text(rest.to_owned()),
        '-' => Reply::Error(rest.to_owned()),
        ':' => Reply::Number(number()?),
        '$' if number()? < 0 => Reply::Null,
        '$' => {
            let mut bytes = vec![0; number()? as usize + 2];
            stream.read_exact(&mut bytes)?;
            bytes.truncate(bytes.len() - 2);
            Reply::Text(String::from_utf8(bytes).unwrap())
        }
        '*' => Reply::Array((0..number()?).map(|_| read(stream)).collect::<Result<_>>()?),
        _ => panic!("{line}"),
    })
}
