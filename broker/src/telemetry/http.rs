//! The control page: status, metrics, health, and the level of the log, which alone can be changed here. It asks the
//! control thread's main task for what it shows, and owns nothing. Few connections at a time, none for long: a page, not a
//! service.

use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::Router;
use axum::extract::connect_info::Connected;
use axum::extract::{ConnectInfo, DefaultBodyLimit, RawQuery, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::serve::IncomingStream;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Sleep;

use super::logs::LogLevel;
use super::metrics::{CONTENT_TYPE, Detail};
use super::snapshot::Readiness;
use super::status::PAGE;
use crate::limits::{HTTP_BODY_BYTES_MAX, HTTP_CONNECTION_MAX, HTTP_CONNECTIONS_MAX};

/// What there is to ask for.
const PATHS: &str = "A Corelane broker. There are /, /metrics, /health/live, /health/ready and /log/level here.\n";
/// What the status page may do: run what it brings along and ask where it came from.
const PAGE_POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; \
                           img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// A question to the control thread's main task.
#[derive(Debug)]
pub enum Question {
    /// The metrics page.
    Metrics(Detail, oneshot::Sender<String>),
    /// What the status page shows.
    Status(oneshot::Sender<String>),
    /// Whether the broker is ready.
    Ready(oneshot::Sender<Readiness>),
}

impl Question {
    /// Whether nobody waits for the answer any more.
    pub fn is_abandoned(&self) -> bool {
        match self {
            Self::Metrics(_, answer) | Self::Status(answer) => answer.is_closed(),
            Self::Ready(answer) => answer.is_closed(),
        }
    }
}

/// What the pages' answers are made from.
#[derive(Clone)]
struct Pages {
    questions: mpsc::Sender<Question>,
    level: LogLevel,
}

/// Serves the pages until it is dropped.
pub async fn serve(listener: TcpListener, questions: mpsc::Sender<Question>, level: LogLevel) -> io::Result<()> {
    let router = Router::new()
        .route("/", get(page))
        .route("/status.json", get(status))
        .route("/metrics", get(metrics))
        .route("/health/live", get(async || "live\n"))
        .route("/health/ready", get(ready))
        .route("/log/level", get(log_level).put(set_log_level))
        .fallback(async || (StatusCode::NOT_FOUND, PATHS))
        .layer(DefaultBodyLimit::max(HTTP_BODY_BYTES_MAX))
        .with_state(Pages { questions, level });
    let listener = Limited { listener, seats: VecDeque::new() };
    axum::serve(listener, router.into_make_service_with_connect_info::<Peer>()).await
}

/// Where a request came from.
#[derive(Clone, Copy, Debug)]
struct Peer(SocketAddr);

impl Connected<IncomingStream<'_, Limited>> for Peer {
    fn connect_info(stream: IncomingStream<'_, Limited>) -> Self {
        Self(*stream.remote_addr())
    }
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

async fn page() -> Response {
    let headers = [
        (header::CONTENT_TYPE, "text/html; charset=utf-8"),
        (header::CONTENT_SECURITY_POLICY, PAGE_POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-cache"),
    ];
    (headers, PAGE).into_response()
}

async fn status(State(pages): State<Pages>) -> Response {
    match ask(&pages.questions, Question::Status).await {
        Some(json) => {
            let headers = [(header::CONTENT_TYPE, "application/json"), (header::CACHE_CONTROL, "no-store")];
            (headers, json).into_response()
        }
        None => stopping(),
    }
}

async fn metrics(State(pages): State<Pages>, RawQuery(query): RawQuery) -> Response {
    let detail = match detail(query.as_deref().unwrap_or("")) {
        Ok(detail) => detail,
        Err(reason) => return (StatusCode::BAD_REQUEST, reason).into_response(),
    };
    match ask(&pages.questions, |answer| Question::Metrics(detail, answer)).await {
        Some(page) => ([(header::CONTENT_TYPE, CONTENT_TYPE)], page).into_response(),
        None => stopping(),
    }
}

/// What a query asks for.
fn detail(query: &str) -> Result<Detail, String> {
    let mut detail = Detail::default();
    for one in query.split('&').filter(|one| !one.is_empty()) {
        match one {
            "topics=1" => detail.topics = true,
            "partitions=1" => detail.partitions = true,
            "topics=0" | "partitions=0" => {}
            _ => return Err(format!("{one:?} is not known; there are topics=1 and partitions=1\n")),
        }
    }
    Ok(detail)
}

async fn ready(State(pages): State<Pages>) -> Response {
    match ask(&pages.questions, Question::Ready).await {
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

async fn log_level(State(pages): State<Pages>) -> String {
    format!("{}\n", pages.level.get())
}

/// Only from this machine, whatever the page listens on, and never for a script of some other page in an operator's
/// browser, which always says where it comes from.
async fn set_log_level(
    State(pages): State<Pages>,
    ConnectInfo(Peer(peer)): ConnectInfo<Peer>,
    headers: HeaderMap,
    filter: String,
) -> Response {
    if !peer.ip().to_canonical().is_loopback() || headers.contains_key(header::ORIGIN) {
        let reason = "the level of the log can be changed from the broker's machine only, and not by a web page\n";
        return (StatusCode::FORBIDDEN, reason).into_response();
    }
    match pages.level.set(filter.trim()) {
        Ok(()) => format!("{}\n", pages.level.get()).into_response(),
        Err(reason) => (StatusCode::BAD_REQUEST, format!("{reason}\n")).into_response(),
    }
}

/// A listener with a bounded number of connections: the next one takes the oldest's place. A page is made in
/// milliseconds, so it is the idle that lose theirs, and whoever asks for the broker's health is heard.
struct Limited {
    listener: TcpListener,
    /// The oldest first. What is dropped here ends its connection.
    seats: VecDeque<oneshot::Sender<()>>,
}

impl axum::serve::Listener for Limited {
    type Io = Seated;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Seated, SocketAddr) {
        let (stream, peer) = axum::serve::Listener::accept(&mut self.listener).await;
        self.seats.retain(|seat| !seat.is_closed());
        if self.seats.len() >= HTTP_CONNECTIONS_MAX {
            self.seats.pop_front();
        }
        let (seat, taken) = oneshot::channel();
        self.seats.push_back(seat);
        (Seated { stream, until: Box::pin(tokio::time::sleep(HTTP_CONNECTION_MAX)), taken }, peer)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// A connection that ends when its time is up, or another one takes its place.
struct Seated {
    stream: TcpStream,
    until: Pin<Box<Sleep>>,
    taken: oneshot::Receiver<()>,
}

impl Seated {
    fn check_time(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        let is_over = self.until.as_mut().poll(cx).is_ready() || Pin::new(&mut self.taken).poll(cx).is_ready();
        if is_over { Err(io::ErrorKind::TimedOut.into()) } else { Ok(()) }
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
