"""Its pages."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.urls import path

from tests.django.shop.models import Order
from tests.django.shop.tasks import pay


def order(request: HttpRequest) -> HttpResponse:
    made = Order.objects.create(name="of a request")
    return HttpResponse(pay.enqueue(made.pk).id)


async def aorder(request: HttpRequest) -> HttpResponse:
    made = await Order.objects.acreate(name="of an async request")
    return HttpResponse((await pay.aenqueue(made.pk)).id)


urlpatterns: list[Any] = [path("order/", order), path("aorder/", aorder), path("admin/", admin.site.urls)]
