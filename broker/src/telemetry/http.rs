//! The control page: /metrics, /health/live, /health/ready. It asks the control thread's main task for what it shows, and
//! owns nothing. Few connections at a time, none for longer than a minute: a page, not a service.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::time::Sleep;

use super::metrics::CONTENT_TYPE;
use crate::limits::{HTTP_CONNECTION_MAX, HTTP_CONNECTIONS_MAX};

/// What there is to ask for.
const PATHS: &str = "A Corelane broker. There are /metrics, /health/live and /health/ready here.\n";

/// A question to the control thread's main task.
#[derive(Debug)]
pub enum Question {
    /// The metrics page.
    Metrics(oneshot::Sender<String>),
    /// Whether the broker is ready.
    Ready(oneshot::Sender<Readiness>),
}

/// Whether the broker is ready, and what else an operator should know.
#[derive(Debug, Default)]
pub struct Readiness {
    /// Why it is not; empty: it is.
    pub reasons: Vec<String>,
    /// What does not keep it from serving.
    pub warnings: Vec<String>,
}

/// Serves the page until it is dropped.
pub async fn serve(listener: TcpListener, questions: mpsc::Sender<Question>) -> io::Result<()> {
    let router = Router::new()
        .route("/", get(async || PATHS))
        .route("/metrics", get(metrics))
        .route("/health/live", get(async || "live\n"))
        .route("/health/ready", get(ready))
        .fallback(async || (StatusCode::NOT_FOUND, PATHS))
        .with_state(questions);
    let listener = Limited { listener, seats: Arc::new(Semaphore::new(HTTP_CONNECTIONS_MAX)) };
    axum::serve(listener, router).await
}

async fn ask<T>(
    questions: &mpsc::Sender<Question>,
    question: impl FnOnce(oneshot::Sender<T>) -> Question,
) -> Option<T> {
    let (reply, answer) = oneshot::channel();
    questions.send(question(reply)).await.ok()?;
    answer.await.ok()
}

fn stopping() -> Response {
    (StatusCode::SERVICE_UNAVAILABLE, "the broker is stopping\n").into_response()
}

async fn metrics(State(questions): State<mpsc::Sender<Question>>) -> Response {
    match ask(&questions, Question::Metrics).await {
        Some(page) => ([(header::CONTENT_TYPE, CONTENT_TYPE)], page).into_response(),
        None => stopping(),
    }
}

async fn ready(State(questions): State<mpsc::Sender<Question>>) -> Response {
    match ask(&questions, Question::Ready).await {
        Some(Readiness { reasons, warnings }) => {
            let is_ready = reasons.is_empty();
            let mut lines = if is_ready { vec!["ready".to_owned()] } else { reasons };
            lines.extend(warnings.into_iter().map(|warning| format!("warning: {warning}")));
            let status = if is_ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
            (status, lines.join("\n") + "\n").into_response()
        }
        None => stopping(),
    }
}

/// A listener with a bounded number of connections; the next one waits in the system's queue.
struct Limited {
    listener: TcpListener,
    seats: Arc<Semaphore>,
}

impl axum::serve::Listener for Limited {
    type Io = Seated;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Seated, SocketAddr) {
        let seat = Arc::clone(&self.seats).acquire_owned().await.expect("the semaphore is never closed");
        let (stream, peer) = axum::serve::Listener::accept(&mut self.listener).await;
        let until = Box::pin(tokio::time::sleep(HTTP_CONNECTION_MAX));
        (Seated { stream, until, _seat: seat }, peer)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// A connection that ends when its time is up.
struct Seated {
    stream: TcpStream,
    until: Pin<Box<Sleep>>,
    _seat: OwnedSemaphorePermit,
}

impl Seated {
    fn check_time(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        if self.until.as_mut().poll(cx).is_ready() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(()) }
    }
}

impl AsyncRead for Seated {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.check_time(cx)?;
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Seated {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.check_time(cx)?;
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
