//! The fronts end to end: a server on loopback, and clients that write and read bytes.

mod beside;
mod bits;
mod dump;
mod expiry;
mod held;
mod kept;
mod limits;
mod member;
mod memcached;
mod meta;
mod pause;
mod redis;
mod relay;
mod sessions;
mod statistics;
mod suites;
mod turns;

#[path = "../suites/mod.rs"]
mod judges;

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use remora_store::front::keyspace::{Forgetful, Keeper};
use remora_store::front::served::Served;
use remora_store::front::server::{Options, Server};
use remora_store::journal::Unlogged;
use remora_store::memory::Heap;
use remora_store::store::{self, Store};
use remora_store::tablespace::{Eviction, TablespaceOptions};
use remora_store::way::clock::now_ms;

/// A client that has waited so long for an answer will not get one.
const PATIENCE: Duration = Duration::from_secs(60);
const ANY: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// Both fronts on one database, as `remora store serve` has them.
fn options() -> Options {
    Options { redis: vec![ANY], memcached: vec![ANY], is_shared: true, ..Options::default() }
}

fn serve_with(options: &Options, keeper: Arc<dyn Keeper>) -> Server {
    serve_limited(options, keeper, 256 << 20)
}

/// A server whose store may take `limit` bytes.
fn serve_limited(options: &Options, keeper: Arc<dyn Keeper>, limit: u64) -> Server {
    let spaces = TablespaceOptions { eviction: Eviction::Clock, ..TablespaceOptions::default() };
    serve_spaces(options, keeper, limit, spaces)
}

/// The same, whose clients get such tablespaces by using them.
fn serve_spaces(
    options: &Options,
    keeper: Arc<dyn Keeper>,
    limit: u64,
    spaces: TablespaceOptions,
) -> Server {
    let made = store::Options::new(limit, 7);
    let memory = Heap::new(made.memory_len());
    let store = Arc::new(Store::new(memory, Unlogged::default(), made).expect("a store"));
    let swept = Arc::downgrade(&store);
    std::thread::spawn(move || {
        while let Some(store) = swept.upgrade() {
            store.sweep(now_ms(), 1024);
            drop(store);
            std::thread::sleep(Duration::from_millis(5));
        }
    });
    let keyspace = Arc::new(Served::new(store, limit, spaces));
    Server::start(options, keyspace, keeper).expect("loopback can be served")
}

fn serve(options: &Options) -> Server {
    serve_with(options, Arc::new(Forgetful))
}

/// A client that knows nothing of protocols.
struct Client(TcpStream);

impl Client {
    fn new(address: SocketAddr) -> Client {
        let stream = TcpStream::connect(address).expect("the server accepts");
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        Client(stream)
    }

    fn redis(server: &Server) -> Client {
        Client::new(server.redis()[0])
    }

    fn memcached(server: &Server) -> Client {
        Client::new(server.memcached()[0])
    }

    fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.0.write_all(bytes.as_ref()).expect("the server reads");
    }

    /// Sends, and expects exactly this answer.
    #[track_caller]
    fn ask(&mut self, bytes: impl AsRef<[u8]>, answer: impl AsRef<[u8]>) {
        self.send(&bytes);
        self.expect(&answer);
    }

    #[track_caller]
    fn expect(&mut self, answer: impl AsRef<[u8]>) {
        let answer = answer.as_ref();
        let mut got = vec![0; answer.len()];
        let mut filled = 0;
        while filled < got.len() {
            match self.0.read(&mut got[filled..]) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => break,
            }
            if got[..filled] != answer[..filled] {
                break;
            }
        }
        let got = &got[..filled];
        assert!(got == answer, "got {:?}\nnot {:?}", shown(got), shown(answer));
    }

    /// Reads a line, with its end.
    fn line(&mut self) -> String {
        let mut line = Vec::new();
        while !line.ends_with(b"\n") {
            let mut byte = [0];
            match self.0.read(&mut byte) {
                Ok(1) => line.push(byte[0]),
                _ => break,
            }
        }
        String::from_utf8_lossy(&line).into_owned()
    }

    /// Expects that the server has ended the connection, after this.
    #[track_caller]
    fn expect_end(&mut self, answer: impl AsRef<[u8]>) {
        let mut got = Vec::new();
        let end = self.0.read_to_end(&mut got);
        let ended =
            end.is_ok() || end.is_err_and(|error| error.kind() == ErrorKind::ConnectionReset);
        assert!(ended, "the connection goes on");
        assert!(got == answer.as_ref(), "got {:?}", shown(&got));
    }
}

fn shown(bytes: &[u8]) -> String {
    bytes[..bytes.len().min(300)].escape_ascii().to_string()
}
