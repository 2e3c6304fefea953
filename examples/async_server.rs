//! An async server of many clients, in one thread: each has a task, a connection and a counter in
//! the server's memory. Requests are plain futures; the executor here is tokio's, and any will do.
//!
//! `cargo run -p remora --example async_server`

use std::error::Error;
use std::net::SocketAddr;

use remora::prelude::*;
use tokio::task::JoinSet;

const CLIENTS: u64 = 8;
const QUESTIONS: u64 = 50;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// Accepts clients, and serves each in a task of its own.
async fn serve(device: Device, listener: Listener) -> Result<u64> {
    let domain = device.alloc_pd()?;
    let counter = domain.alloc(8, Access::LOCAL_WRITE | Access::REMOTE_ATOMIC)?;
    let params = ConnectionParams::new(device.info().mtu);
    let mut served = JoinSet::new();
    for _ in 0..CLIENTS {
        let request = listener.accept().await?;
        let qp = domain.create_qp(&QueuePairOptions::new().inline(64))?;
        let connection = request.accept(qp, b"", &params).await?;
        served.spawn(talk(domain.clone(), connection, counter.slice(..).remote()));
    }
    while let Some(client) = served.join_next().await {
        client??;
    }
    Ok(counter.slice(..).load_u64()?)
}

/// Tells a client where the counter is, and then answers in capitals until the client disconnects.
async fn talk(domain: ProtectionDomain, connection: Connection, counter: Remote) -> Result<()> {
    let (qp, room) = (connection.queue_pair(), domain.alloc(64, Access::LOCAL_WRITE)?);
    connection.send_remote(counter).await?;
    // When the client disconnects, the request that waits for a message ends with an error.
    while let Ok(question) = qp.recv(&room).await {
        let text = room.slice(..question.len as usize).to_vec()?;
        qp.send(&text.to_ascii_uppercase()).await?;
    }
    Ok(())
}

async fn client(number: u64, server: SocketAddr) -> Result<()> {
    let device = Device::open()?;
    let domain = device.alloc_pd()?;
    let qp = domain.create_qp(&QueuePairOptions::new().inline(64))?;
    let params = ConnectionParams::new(device.info().mtu);
    let connection = device.connect(qp.clone(), server, b"", &params).await?;
    let counter = connection.recv_remote().await?;
    let room = domain.alloc(64, Access::LOCAL_WRITE)?;
    for question in 0..QUESTIONS {
        let answer = qp.recv(&room);
        qp.send(format!("client {number}, question {question}").as_bytes()).await?;
        let len = answer.await?.len as usize;
        let expected = format!("CLIENT {number}, QUESTION {question}");
        assert_eq!(room.slice(..len).to_vec()?, expected.as_bytes());
        qp.fetch_add(counter, 1).await?;
    }
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let device = Device::open()?;
    let listener = device.listen(7472)?;
    let address = SocketAddr::new(device.info().address, listener.port());
    let server = tokio::spawn(serve(device, listener));
    let mut clients: JoinSet<_> = (0..CLIENTS).map(|number| client(number, address)).collect();
    while let Some(client) = clients.join_next().await {
        client??;
    }
    println!("{CLIENTS} clients counted {} answers on one word", server.await??);
    Ok(())
}
