"""Every error of the HTTP application in the OpenAI body: ours, the framework's, and failures."""

from __future__ import annotations

import logging

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from prism_ray.serving import errors
from prism_ray.serving.errors import ApiError

logger = logging.getLogger(__name__)


def handle_errors(api: FastAPI) -> None:
    """Answer what handlers raise, and what the framework refuses by itself (404, 405, parameters)."""
    api.add_exception_handler(ApiError, _on_api_error)
    api.add_exception_handler(HTTPException, _on_http_error)
    api.add_exception_handler(RequestValidationError, _on_bad_parameter)
    api.add_exception_handler(ClientDisconnect, _on_disconnect)
    api.add_exception_handler(Exception, _on_failure)


async def _on_api_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return JSONResponse(error.body, error.status, headers=error.headers)


async def _on_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = f"{request.method} {request.url.path}: {error.detail}"
    body = errors.error_body(message, "invalid_request_error")
    return JSONResponse(body, error.status_code, headers=error.headers)


async def _on_bad_parameter(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    path = ".".join(str(part) for part in first["loc"][1:])  # without "query" or "header"
    return JSONResponse(errors.bad_request(f"{path}: {first['msg']}", path).body, 400)


async def _on_disconnect(_: Request, __: Exception) -> Response:
    return Response(status_code=499)  # nobody reads it


async def _on_failure(request: Request, error: Exception) -> Response:
    logger.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return JSONResponse(errors.internal("the server failed").body, 500)
