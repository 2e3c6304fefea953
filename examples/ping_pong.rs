//! A client connects to a server by address and port, and each message comes back.
//!
//! Both run in this program, in a thread each: `cargo run -p remora --example ping_pong`.

use std::error::Error;
use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use remora::prelude::*;

const ROUNDS: u32 = 1000;
const TIMEOUT: Duration = Duration::from_secs(10);

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// Waits for a client, and sends each of its messages back.
fn serve(device: &Device, listener: &Listener) -> Result<()> {
    let domain = device.alloc_pd()?;
    let qp = domain.create_qp(&QueuePairOptions::new())?;
    let room = domain.alloc(64, Access::LOCAL_WRITE)?;

    let request = listener.accept().wait(TIMEOUT)?;
    println!("server: {} asks for a connection", request.peer().ip());
    let params = ConnectionParams::new(device.info().mtu);
    let connection = request.accept(qp.clone(), b"", &params).wait(TIMEOUT)?;
    for _ in 0..ROUNDS {
        let ping = qp.recv(&room).wait(TIMEOUT)?;
        qp.send(room.slice(..ping.len as usize)).wait(TIMEOUT)?;
    }
    connection.wait_for_end(TIMEOUT);
    Ok(())
}

/// Connects, sends messages, and waits for the answer to each.
fn ping(server: SocketAddr) -> Result<Duration> {
    let device = Device::open()?;
    let domain = device.alloc_pd()?;
    let qp = domain.create_qp(&QueuePairOptions::new())?;
    let room = domain.alloc(64, Access::LOCAL_WRITE)?;
    let params = ConnectionParams::new(device.info().mtu);
    let _connection = device.connect(qp.clone(), server, b"", &params).wait(TIMEOUT)?;

    let start = Instant::now();
    for round in 0..ROUNDS {
        // Posted before the message leaves, so that the answer has room.
        let pong = qp.recv(&room);
        qp.send(&round.to_le_bytes()).wait(TIMEOUT)?;
        pong.wait(TIMEOUT)?;
        assert_eq!(room.slice(..4).to_vec()?, round.to_le_bytes());
    }
    Ok(start.elapsed() / ROUNDS)
}

fn main() -> Result<()> {
    let device = Device::open()?; // a free address of 127.0.0.0/8
    let listener = device.listen(7471)?;
    let address = SocketAddr::new(device.info().address, listener.port());
    let server = thread::spawn(move || serve(&device, &listener));

    let round_trip = ping(address)?;
    println!("client: {ROUNDS} messages came back, each within {round_trip:?} on average");
    server.join().expect("the server does not panic")
}
